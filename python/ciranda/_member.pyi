"""
Decides who is a member of an elastic job; the launcher uses it.
"""
from __future__ import annotations
import collections.abc
import typing
__all__: list[str] = ['Action', 'ActionKind', 'Arbiter', 'EndReason', 'News', 'NewsKind', 'over_message']
class ActionKind:
    """
    Members:
    
      start
    
      kill
    
      send
    
      news
    
      give_up
    
      end
    """
    __members__: typing.ClassVar[dict[str, ActionKind]]
    end: typing.ClassVar[ActionKind]
    give_up: typing.ClassVar[ActionKind]
    kill: typing.ClassVar[ActionKind]
    news: typing.ClassVar[ActionKind]
    send: typing.ClassVar[ActionKind]
    start: typing.ClassVar[ActionKind]
    @typing.overload
    def __eq__(self, other: ActionKind) -> bool:
        ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    @typing.overload
    def __ne__(self, other: ActionKind) -> bool:
        ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class EndReason:
    """
    Members:
    
      finished
    
      failed
    
      failed_at_start
    
      too_few_ranks
    
      no_state
    
      reset_limit
    
      stuck
    
      unfinished
    
      left_early
    """
    __members__: typing.ClassVar[dict[str, EndReason]]
    failed: typing.ClassVar[EndReason]
    failed_at_start: typing.ClassVar[EndReason]
    finished: typing.ClassVar[EndReason]
    left_early: typing.ClassVar[EndReason]
    no_state: typing.ClassVar[EndReason]
    reset_limit: typing.ClassVar[EndReason]
    stuck: typing.ClassVar[EndReason]
    too_few_ranks: typing.ClassVar[EndReason]
    unfinished: typing.ClassVar[EndReason]
    @typing.overload
    def __eq__(self, other: EndReason) -> bool:
        ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    @typing.overload
    def __ne__(self, other: EndReason) -> bool:
        ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class NewsKind:
    """
    Members:
    
      formed
    
      waiting
    
      ended_late
    
      bad_message
    
      no_more_starts
    
      silent
    """
    __members__: typing.ClassVar[dict[str, NewsKind]]
    bad_message: typing.ClassVar[NewsKind]
    ended_late: typing.ClassVar[NewsKind]
    formed: typing.ClassVar[NewsKind]
    no_more_starts: typing.ClassVar[NewsKind]
    silent: typing.ClassVar[NewsKind]
    waiting: typing.ClassVar[NewsKind]
    @typing.overload
    def __eq__(self, other: NewsKind) -> bool:
        ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    @typing.overload
    def __ne__(self, other: NewsKind) -> bool:
        ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class News:
    """
    Something to tell the user.
    """
    @property
    def epoch(self) -> int:
        ...
    @property
    def incarnation(self) -> int:
        ...
    @property
    def joined(self) -> list[int]:
        ...
    @property
    def kind(self) -> NewsKind:
        ...
    @property
    def lost(self) -> list[tuple[int, int]]:
        ...
    @property
    def members(self) -> list[int]:
        ...
    @property
    def planned(self) -> bool:
        ...
    @property
    def since_s(self) -> float:
        ...
    @property
    def step(self) -> int:
        ...
class Action:
    """
    Something that the arbiter wants to be done.
    """
    @property
    def by(self) -> int:
        ...
    @property
    def host(self) -> int:
        ...
    @property
    def incarnation(self) -> int:
        ...
    @property
    def kind(self) -> ActionKind:
        ...
    @property
    def news(self) -> News | None:
        ...
    @property
    def payload(self) -> bytes:
        ...
    @property
    def reason(self) -> EndReason | None:
        ...
    @property
    def slot(self) -> int:
        ...
    @property
    def step(self) -> int:
        ...
class Arbiter:
    """
    Decides who is a member of an elastic job, and when.
    """
    def __init__(self, *, np: typing.SupportsInt | typing.SupportsIndex, min_np: typing.SupportsInt | typing.SupportsIndex, max_np: typing.SupportsInt | typing.SupportsIndex, spares: typing.SupportsInt | typing.SupportsIndex, reset_limit: typing.SupportsInt | typing.SupportsIndex | None, elastic_timeout_s: typing.SupportsFloat | typing.SupportsIndex, start_timeout_s: typing.SupportsFloat | typing.SupportsIndex, lease_s: typing.SupportsFloat | typing.SupportsIndex, hosts: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, str]] = [], homes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [], hosts_may_join: bool = False) -> None:
        ...
    def deadline_ns(self) -> int | None:
        ...
    def exited(self, incarnation: typing.SupportsInt | typing.SupportsIndex, clean: bool, by_signal: bool, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def host_beats(self, host: typing.SupportsInt | typing.SupportsIndex, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def host_joins(self, slots: typing.SupportsInt | typing.SupportsIndex, meet_at: str, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def host_leaves(self, host: typing.SupportsInt | typing.SupportsIndex, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def host_lost(self, host: typing.SupportsInt | typing.SupportsIndex, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def host_returned(self, host: typing.SupportsInt | typing.SupportsIndex, meet_at: str, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def said(self, incarnation: typing.SupportsInt | typing.SupportsIndex, data: bytes, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def start(self, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
    def tick(self, now_ns: typing.SupportsInt | typing.SupportsIndex) -> list[Action]:
        ...
def over_message() -> bytes:
    """
    Returns the message that lets a process leave, for a job that ends without the arbiter.
    """
