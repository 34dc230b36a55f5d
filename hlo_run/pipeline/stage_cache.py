"""Texts of stages that were printed before, in the user's cache: by all that the executable depends on, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hlo_run.cache import FileCache, digest
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.pipeline import executable_cache


class StageTexts:
    """What one stage of one compilation prints."""

    def __init__(self, cache: FileCache, key: str) -> None:
        self._cache, self._key = cache, key

    @classmethod
    def open(cls, ctx: PassContext, module: HloModule) -> StageTexts | None:
        """Return the place of the texts; None where a compilation must take place to be seen or changed on the way."""
        cache = executable_cache.open_for(ctx)
        if cache is None:
            return None
        key = digest("stage", executable_cache.key_of(ctx, module), ctx.show.display_key())
        return cls(FileCache(cache.root, "stages"), key)

    def get(self) -> list[str] | None:
        """Return the texts in their order, if they were printed before."""
        data = self._cache.get(self._key)
        return None if data is None else json.loads(data)

    def put(self, texts: Sequence[str]) -> None:
        """Keep the texts for other runs."""
        data = json.dumps(texts).encode()
        if len(data) <= executable_cache.MOST_BYTES:
            self._cache.put(self._key, data)
            self._cache.clean()
