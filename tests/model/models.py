"""What is checked: each model with each of its programs, and mistakes that must be found."""

from __future__ import annotations

from dataclasses import dataclass

# Programs of a model (see its .pml) with fewer states are searched in less time than an optimising
# compiler takes for them.
SMALL = 2_000_000


@dataclass(frozen=True)
class Program:
    model: str
    name: str
    states: int  # about; decides how the checker is compiled
    soak: bool = False


@dataclass(frozen=True)
class Mistake:
    model: str
    number: int
    program: str  # the smallest that finds it
    sentence: str
    endless: bool = False  # nobody sleeps for ever, but somebody goes round for ever


PROGRAMS = (
    Program("seat", "async", 276_000),
    Program("seat", "leaves", 163_000),
    Program("seat", "computes", 21_000),
    Program("seat", "threads", 328_000),
    Program("seat", "submitters", 82_000),
    Program("seat", "submitter", 1_050_000, soak=True),
    Program("seat", "rounds", 419_000),
    Program("seat", "far", 128_000),
    Program("seat", "visitor", 20_000),
    Program("seat", "polls", 696_000, soak=True),
    Program("seat", "poll_calls", 1_400),
    Program("seat", "full", 8_860_000, soak=True),
    Program("seat", "full_computes", 2_150_000, soak=True),
    Program("seat", "overlap", 91_000),
    Program("seat", "overlap_waits", 478_000),
    Program("seat", "three", 1_170_000, soak=True),
    Program("seat", "three_wait", 9_100_000, soak=True),
    Program("seat", "shuts_down", 495_000),
    Program("seat", "shutdown_pending", 393_000),
    Program("seat", "shutdown_computes", 20_000),
    Program("seat", "shutdown_threads", 828_000, soak=True),
    Program("seat", "shutdown_alone", 6_300),
    Program("seat", "shutdown_unread", 1_100),
    Program("seat", "shutdown_late", 1_680_000, soak=True),
    Program("seat", "shutdown_full", 2_260_000, soak=True),
    Program("seat", "failure", 53_000),
    Program("seat", "failure_computes", 19_000),
    Program("seat", "failure_here", 1_090_000, soak=True),
    Program("seat", "set", 2_460_000, soak=True),
    Program("seat", "set_full", 2_190_000, soak=True),
    Program("seat", "set_hides", 131_000),
    Program("seat", "set_overlap", 14_300_000, soak=True),
    Program("seat", "full_twice", 4_250_000, soak=True),
    Program("connection_thread", "both", 505_000),
    Program("connection_thread", "callee_ends", 1_300_000, soak=True),
    Program("connection_thread", "caller_ends", 1_160_000),
    Program("meeting", "fine_or_one_dies", 12_000),
    Program("meeting", "two_die", 38_000),
    Program("meeting", "second_misfit", 7_900),
    Program("meeting", "host_misfit", 12_000),
)

MISTAKES = (
    Mistake("seat", 1, "computes", "ring_all() has no fence, so it may miss who has just slept"),
    Mistake("seat", 2, "computes", "a cycle that moved something rings no peer"),
    Mistake("seat", 3, "far", "a completion rings no thread of the own rank"),
    Mistake("seat", 4, "computes", "who publishes on the way out rings no peer"),
    Mistake("seat", 5, "submitters", "who has published on the way out does not look again"),
    Mistake("seat", 6, "computes", "no fence between the push and try_lock"),
    Mistake("seat", 7, "computes", "no fence between the unlock and the look at the queue"),
    Mistake("seat", 10, "computes", "no second look between the announcement and the sleep"),
    Mistake("seat", 11, "computes", "the announcement comes after the second look"),
    Mistake("seat", 12, "computes", "the ticket is taken after the second look"),
    Mistake("seat", 13, "leaves", "the peers' `drivers` are read before the announcement"),
    Mistake("seat", 14, "submitter", "the queue is not looked at before the sleep"),
    Mistake("seat", 15, "computes", "a waiter does not call on the ranks that it is stuck on"),
    Mistake("seat", 16, "leaves", "a driver looks for sleepers before it lowers `drivers`"),
    Mistake("seat", 17, "leaves", "a driver leaves without a last look"),
    Mistake("seat", 18, "leaves", "the last look overlooks a frame that was not read"),
    Mistake("seat", 19, "rounds", "the last look overlooks an operation that runs"),
    Mistake("seat", 20, "full", "the last look overlooks a frame that was not sent"),
    Mistake("seat", 22, "computes", "a frame rings nobody"),
    Mistake("seat", 23, "computes", "a rank's part of an operation rings nobody"),
    Mistake("seat", 24, "set_hides", "who sleeps does not look again for what is hidden"),
    Mistake("seat", 25, "poll_calls", "poll() calls on nobody"),
    Mistake("seat", 26, "polls", "poll() does not look at the queue after it had the seat"),
    Mistake("seat", 27, "visitor", "a visitor keeps the turn that was the background thread's"),
    Mistake("seat", 30, "leaves", "the eventfd is read after the work instead of before"),
    Mistake("seat", 31, "computes", "the background thread does not look at the queue at the end"),
    Mistake("seat", 40, "failure", "the alarm is rung before the failure is recorded"),
    Mistake("seat", 41, "failure", "the alarm wakes no waiter"),
    Mistake("seat", 43, "failure_computes", "the alarm wakes no background thread"),
    Mistake("seat", 50, "overlap", "with overlap, submit() does not wake the background thread"),
    Mistake("seat", 51, "overlap_waits", "with overlap, a driver leaves and nobody listens"),
    Mistake("seat", 52, "overlap_waits", "with overlap, a driver does not look after it listens"),
    Mistake("seat", 53, "overlap", "the background thread does not look after it listens"),
    Mistake("seat", 60, "shutdown_computes", "shutdown() calls on nobody to finish what runs"),
    Mistake("seat", 61, "shutdown_threads", "the queue is closed after what is in it was ended"),
    Mistake("seat", 62, "shutdown_alone", "what shutdown() ends wakes nobody of the own rank"),
    Mistake("seat", 63, "shutdown_pending", "what comes before the own goodbye is not read"),
    Mistake("seat", 64, "shuts_down", "the goodbye rings nobody"),
    Mistake("seat", 65, "shutdown_unread", "shutdown() calls on nobody for room in the log"),
    Mistake("seat", 66, "shutdown_late", "who reads no further does not ring those without room"),
    Mistake("seat", 67, "shutdown_computes", "shutdown() does not wake the thread that it joins"),
    Mistake("seat", 70, "full_computes", "a rank without room in the log does not listen"),
    Mistake("seat", 71, "full_computes", "a rank without room does not try again after it listens"),
    Mistake("seat", 72, "full_computes", "a rank without room calls on nobody"),
    Mistake("seat", 73, "set_full", "a rank without room wakes nobody who sleeps"),
    Mistake("seat", 74, "full_computes", "a rank without room does not ask itself to read"),
    Mistake("seat", 75, "full_computes", "a late frame wakes nobody of the own rank"),
    Mistake("seat", 80, "computes", "a waiter that nothing moves for does not sleep", True),
    Mistake("seat", 81, "three_wait", "a cycle that moved nothing rings the peers", True),
    Mistake("seat", 82, "threads", "what has finished wakes the own rank after each cycle", True),
    Mistake("seat", 83, "computes", "the background thread rings itself while it has work", True),
    Mistake("seat", 84, "failure", "a failed rank ends what is queued and leaves it there", True),
    Mistake("seat", 85, "failure_computes", "a failed rank rings the alarm in each cycle", True),
    Mistake("seat", 86, "leaves", "the background thread rings itself when it yields", True),
    Mistake("seat", 87, "full_computes", "a rank without room asks those that have read all", True),
    Mistake("seat", 88, "full_computes", "who listens for room hears of the own sets alone"),
    Mistake("connection_thread", 1, "both", "a connection is told of before it lies there"),
    Mistake("connection_thread", 2, "both", "a connection is not told of"),
    Mistake("connection_thread", 3, "callee_ends", "a call that failed is not told of"),
    Mistake(
        "connection_thread", 4, "both", "the end of a call does not make it look at the next order"
    ),
    Mistake("connection_thread", 5, "both", "the thread does not wake for a caller"),
    Mistake("connection_thread", 6, "both", "the thread does not wake for an answer"),
    Mistake(
        "connection_thread", 7, "both", "the eventfd is read after the looks for the end and orders"
    ),
    Mistake("connection_thread", 8, "both", "the eventfd is read after the look at the end"),
    Mistake("connection_thread", 9, "callee_ends", "an order does not wake the thread"),
    Mistake(
        "connection_thread", 10, "both", "take() reads the eventfd after it took what is there"
    ),
    Mistake("connection_thread", 11, "both", "the thread is woken before it is told to end"),
    Mistake("connection_thread", 12, "both", "who joins the thread does not wake it"),
    Mistake("connection_thread", 13, "both", "a driver that misses no link looks for news", True),
    Mistake("connection_thread", 14, "both", "the thread does not read its eventfd", True),
    Mistake("connection_thread", 15, "both", "take() does not read the eventfd", True),
    Mistake("connection_thread", 16, "callee_ends", "a call that failed is placed again", True),
    Mistake(
        "meeting", 1, "fine_or_one_dies", "a rank does not notice the end of its host's first rank"
    ),
    Mistake(
        "meeting", 2, "fine_or_one_dies", "the first rank does not notice the end of another one"
    ),
    Mistake(
        "meeting", 3, "fine_or_one_dies", "who looks for the first rank's socket looks for ever"
    ),
    Mistake("meeting", 4, "second_misfit", "the first rank lets in a rank that does not fit"),
    Mistake(
        "meeting", 5, "second_misfit", "the first rank tells nothing to a rank that does not fit"
    ),
    Mistake("meeting", 6, "host_misfit", "rank 0 lets in a host that does not fit"),
    Mistake("meeting", 7, "host_misfit", "rank 0 tells nothing to a host that does not fit"),
    Mistake("meeting", 8, "fine_or_one_dies", "rank 0 waits for ever for a host that has ended"),
    Mistake(
        "meeting",
        9,
        "fine_or_one_dies",
        "a host does not notice that rank 0 has ended after it called",
    ),
    Mistake("meeting", 10, "fine_or_one_dies", "a host calls a rank 0 that has ended for ever"),
    Mistake(
        "meeting", 11, "fine_or_one_dies", "the first rank does not tell its host who is where"
    ),
    Mistake(
        "meeting",
        12,
        "fine_or_one_dies",
        "the first rank does not tell its host that the hosts have not met",
    ),
)
