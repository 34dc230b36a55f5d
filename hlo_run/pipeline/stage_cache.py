"""Caches the texts of stages in the user's cache directory, by the executable's key and the flags of the output."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hlo_run.cache import FileCache, digest
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline import executable_cache


class StageTexts:
    """The cached texts of one stage of one compilation."""

    def __init__(self, cache: FileCache, key: str) -> None:
        self._cache, self._key = cache, key

    @classmethod
    def open(cls, ctx: PassContext, module: HloModule) -> StageTexts | None:
        """Return the cache entry of the stage; None if observers or replacements need a real compilation, or the cache is off."""
        cache = executable_cache.open_for(ctx)
        if cache is None:
            return None
        key = digest("stage", executable_cache.key_of(ctx, module), ctx.show.display_key())
        return cls(FileCache(cache.root, "stages"), key)

    def get(self) -> list[str] | None:
        """Return the texts in order; None if they are not in the cache."""
        data = self._cache.get(self._key)
        return None if data is None else json.loads(data)

    def put(self, texts: Sequence[str]) -> None:
        """Write the texts to the cache, unless they are too large."""
        data = json.dumps(texts).encode()
        if len(data) <= executable_cache.MOST_BYTES:
            self._cache.put(self._key, data)
