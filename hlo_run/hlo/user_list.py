"""The users of a value, in the order in which XLA keeps them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class UserList(Generic[T]):
    """Distinct users: a new one comes last, and the last one takes the place of one that is removed.

    Passes that ask users in turn take the first that fits, so the order decides. XLA's `HloInstruction::Users`.
    """

    __slots__ = ("_places", "_users")

    def __init__(self, users: Iterable[T] = ()) -> None:
        self._users = list(dict.fromkeys(users))
        self._places = {user: place for place, user in enumerate(self._users)}

    @property
    def members(self) -> list[T]:
        """The users in order; not to be changed. Faster to walk over than the list of users itself."""
        return self._users

    def __iter__(self) -> Iterator[T]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, user: object) -> bool:
        return user in self._places

    def add(self, user: T) -> None:
        """Add a user, unless it is in the list."""
        if user not in self._places:
            self._places[user] = len(self._users)
            self._users.append(user)

    def remove(self, user: T) -> None:
        """Remove a user, which must be there."""
        place, last = self._places.pop(user), self._users.pop()
        if place < len(self._users):
            self._users[place] = last
            self._places[last] = place

    def discard(self, user: T) -> None:
        """Remove a user, if it is in the list."""
        if user in self._places:
            self.remove(user)
