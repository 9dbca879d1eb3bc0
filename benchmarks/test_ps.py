"""Parameter servers: a step through them beside torch's RPC and Ray, training beside a ring, with
and without a slow worker, and how the load is spread."""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import common, training
from benchmarks.report import RESULTS, Report

MIB = 1024 * 1024
RAY = common.OwnEnvironment("ray")
STEP_BYTES = {"4 KiB": 4096, "64 MiB": 64 * MIB}
STEPS = {"4 KiB": 1000, "64 MiB": 10}
# What each side of the table of steps is.
STEP_SIDES = {
    "ciranda": "DistributedOptimizer.step()",
    "client": "the same in C++: Client::push() and answer()",
    "rpc": "torch.distributed.rpc, rpc_sync() over TensorPipe",
    "ray": "Ray, a method of an actor",
    "plain": "no server: torch's own SGD.step()",
    "packet": "limit: a packet there and back",
    "passes": "limit: the passes over memory",
}
LIMIT = {"4 KiB": "packet", "64 MiB": "passes"}
# Where worker and server run: as the kernel likes, or held there. Waking a core that sleeps takes
# longer than all else in a small step, and the kernel places a pair of processes now so, now so.
CORES = {0: "", 1: ", one core", 2: ", two cores"}
HELD = {"4 KiB": (1, 2), "64 MiB": ()}

CROWD = 4
CROWDED = ("ciranda", "ps async", "ps ssp", "ps sync")
SLOWNESS = 5.0
SLOWED_APART = {"ps async": "Async, 1 server", "alone": "processes that do not talk"}

BALANCED = ("mlp", "lopsided")
BALANCED_SERVERS = (2, 3, 4)
SERVED_STEPS = 2

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CURVE_SIDES = ("ring", "sync", "ssp", "async")
EQUAL = "both equally fast"
CURVE_RUNS = 3
CURVE_S = 10.0
CURVE_EVERY_S = 0.25
CURVE_ACCURACY = 0.85


HOW = """A step begins with the gradient where backward() has left it and ends with the new values
in the worker's parameter; SGD makes it on the server, and torch has one thread in each process.
The sides run one after the other in each round, for RPC's threads keep two cores busy while they
wait.
`ciranda` is DistributedOptimizer with Async(). RPC is torch.distributed.rpc over TensorPipe as
torch chooses its transports: a function takes the gradient, steps and returns the parameters, as
in PyTorch's tutorials. Ray is an actor whose method does the same with NumPy arrays, as in Ray's
example of a parameter server; what it returns is copied into the parameter. The limits: a packet
of a Unix SEQPACKET socket there and back between two processes (C++), and four passes over memory
by one thread of torch: gradient and parameters read, parameters written, the worker's parameters
written."""


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("ps", "Parameter servers").kept(log=True) as filled:
        filled.machine["ray"] = "absent" if RAY.missing else ray_version()
        filled.sections.append(HOW)
        yield filled


def ray_version() -> str:
    return common.first_line_of([RAY.python, "-c", "import ray; print(ray.__version__)"])


# --- one step -------------------------------------------------------------------------------------


class Step:
    """The time of one step by each side, in seconds: the median and the 99th percentile of a
    round."""

    def __init__(self, size: str) -> None:
        self.size = size
        self.p50: dict[str, common.Samples] = {}
        self.p99: dict[str, common.Samples] = {}

    def one_round(self) -> None:
        """Each side alone: TensorPipe's threads keep two cores busy also while nobody calls."""
        for make in self._makers():
            with common.running([make]) as (side,):
                side.ask({"iterations": STEPS[self.size] // 4})
                for cores in (0, *HELD[self.size]) if side.name == "ciranda" else (0,):
                    if cores:
                        side.ask({"cores": cores})
                    seconds = side.ask({"iterations": STEPS[self.size]})[0]["seconds"]
                    self._add(
                        side.name + CORES[cores],
                        statistics.median(seconds),
                        percentile_99(seconds),
                    )
        self._add_native()

    def _makers(self) -> list[common.SideMaker]:
        launchers = {
            "ciranda": common.through_servers(1),
            "rpc": common.through_env(),
            "plain": common.through_env(),
        }
        if LIMIT[self.size] == "passes":
            launchers["passes"] = common.through_env()
        if not RAY.missing:
            launchers["ray"] = common.through_env(
                PYTHONPATH=RAY.packages, RAY_USAGE_STATS_ENABLED="0"
            )
        return [
            functools.partial(
                common.Side,
                name,
                launcher,
                "ps_step.py",
                ["--side", name, "--bytes", str(STEP_BYTES[self.size])],
                2 if name == "rpc" else 1,
            )
            for name, launcher in launchers.items()
        ]

    def _add_native(self) -> None:
        """Without Python; nothing where `make bench` did not build it."""
        bench = common.built("ps_bench")
        if bench is None:
            return
        for cores in HELD[self.size] or (0,):
            which = {"client": f"PushAndAnswer/{STEP_BYTES[self.size]}/{cores}/"}
            if LIMIT[self.size] == "packet":
                which["packet"] = f"PacketThereAndBack/{cores}/"
            for name, pattern in which.items():
                command = [str(bench), "--benchmark_format=json", f"--benchmark_filter={pattern}"]
                answer = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(answer.stdout)["benchmarks"][0]
                self._add(name + CORES[cores], found["p50_us"] / 1e6, found["p99_us"] / 1e6)

    def _add(self, name: str, p50: float, p99: float) -> None:
        self.p50.setdefault(name, common.Samples()).add(p50)
        self.p99.setdefault(name, common.Samples()).add(p99)

    def table(self) -> tuple[list[str], list[list[str]]]:
        head = [f"a step of {self.size}, one worker, one server", "median, µs", *self._more_head()]
        rows = [
            [text + cores, self.p50[side + cores].scaled(1e6).show(1), *self._more(side + cores)]
            for side, text in STEP_SIDES.items()
            for cores in CORES.values()
            if side + cores in self.p50
        ]
        return [*head, "÷ ciranda"], rows

    def _more_head(self) -> list[str]:
        return ["99th percentile, µs" if self.size == "4 KiB" else "GB/s"]

    def _more(self, name: str) -> list[str]:
        """For small steps how regular they are, for large ones the gradients and parameters a
        second; and how much longer than ours."""
        p50 = self.p50[name]
        moved = 2 * STEP_BYTES[self.size] / 1e9
        rate = common.Samples([moved / seconds for seconds in p50.values])
        small = self.size == "4 KiB"
        return [
            self.p99[name].scaled(1e6).show(1) if small else rate.show(),
            p50.over(self.p50["ciranda"]).show(),
        ]


def percentile_99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


@pytest.mark.parametrize("size", STEP_BYTES)
def test_step(size: str, report: Report, benchmark: Any) -> None:
    step = Step(size)
    rounds = common.STARTS * common.ROUNDS_PER_START
    benchmark.pedantic(step.one_round, rounds=rounds, iterations=1)
    report.table(*step.table())
    ours, limit = step.p50["ciranda"], LIMIT[size]
    for peer in ("rpc", "ray"):
        if peer in step.p50:
            report.check(
                f"ps.{size}.{peer}", f"{size}: {peer} ÷ ciranda", step.p50[peer].over(ours)
            )
    for side in ("ciranda", "client"):
        for cores in CORES.values():
            if side + cores in step.p50 and limit + cores in step.p50:
                report.check(
                    f"ps.{size}.{side}{cores}",
                    f"{size}{cores}: {STEP_SIDES[side]} ÷ {limit}",
                    step.p50[side + cores].over(step.p50[limit + cores]),
                )
    report.data[f"step_{size}_p50_s"] = common.as_json(step.p50)
    report.data[f"step_{size}_p99_s"] = common.as_json(step.p99)
    report.panels[f"step of {size}, s"] = step.p50


# --- training -------------------------------------------------------------------------------------


def test_more_workers_than_cores(report: Report, benchmark: Any) -> None:
    rates: dict[str, common.Samples] = {}

    def one_start() -> None:
        with common.running(common.training_sides("mlp", CROWDED, ranks=CROWD)) as sides:
            step_s = 0.0
            for side in sides:
                replies = side.ask({"steps": training.WARM_UP_STEPS * 4})
                step_s = statistics.median(s for reply in replies for s in reply["step_s"])
            steps = max(4, int(training.WINDOW_S["mlp"] / step_s))
            for _ in range(common.ROUNDS_PER_START):
                training.measure_in_turn(sides, steps, rates)

    benchmark.pedantic(one_start, rounds=common.STARTS, iterations=1)
    report.table(
        [f"mlp, {CROWD} workers, 1 server, images/s", *rates],
        [
            ["", *(r.show(0) for r in rates.values())],
            ["÷ ring", *(r.over(rates["ciranda"]).show() for r in rates.values())],
        ],
    )
    for side in CROWDED[1:]:
        report.check(
            f"ps.crowded.{side}",
            f"mlp, {CROWD} workers: {side} ÷ ring",
            rates[side].over(rates["ciranda"]),
        )
    report.data["crowded_images_per_s"] = common.as_json(rates)
    report.panels["mlp, images/s"] = rates


def test_a_slow_worker(report: Report, benchmark: Any) -> None:
    """One of two sleeps after each step for four times as long as it has computed. Processes that
    have nothing to do with each other show what two of them take from each other's core."""
    names = ("fast, alone", "slow, alone", "both")
    apart = {name: {what: common.Samples() for what in names} for name in SLOWED_APART}
    ring_rates = common.Samples()

    def one_start() -> None:
        window_s = training.WINDOW_S["mlp"]
        makers = common.training_sides("mlp", ("ciranda", *SLOWED_APART), ranks=2)
        with common.running(makers) as (ring, *sides):
            for side in (ring, *sides):
                side.ask({"rank": 1, "slow_down": SLOWNESS})
                replies = side.ask({"steps": training.WARM_UP_STEPS * 4})
            steps = max(4, int(window_s / statistics.median(replies[1]["step_s"])))
            for _ in range(common.ROUNDS_PER_START):
                for side in sides:
                    for rank, what in enumerate(names[:2]):
                        alone = side.ask({"rank": rank, "seconds": window_s})[rank]
                        apart[side.name][what].add(alone["images"] / alone["elapsed_s"])
                    both, _ = training.images_per_s_alone(side, window_s)
                    apart[side.name]["both"].add(both)
                ring_rates.add(training.images_per_s(ring, steps))

    benchmark.pedantic(one_start, rounds=common.STARTS, iterations=1)
    of_sum = {}
    for name, rates in apart.items():
        pairs = zip(*(rates[what].values for what in names[:2]), strict=True)
        of_sum[name] = rates["both"].over(common.Samples([fast + slow for fast, slow in pairs]))
    report.table(
        [f"mlp, 2 workers, one {SLOWNESS:g} times slower, images/s", *names, "both ÷ their sum"],
        [
            *(
                [text, *(apart[name][what].show(0) for what in names), of_sum[name].show()]
                for name, text in SLOWED_APART.items()
            ),
            ["the ring", "", "", ring_rates.show(0), ""],
        ],
    )
    report.check("ps.slowed", "a slow worker: both ÷ the sum of their speeds", of_sum["ps async"])
    report.check(
        "ps.slowed.limit",
        "a slow worker: Async ÷ processes that do not talk, of both ÷ the sum",
        of_sum["ps async"].over(of_sum["alone"]),
    )
    report.data["slowed_images_per_s"] = {
        **{name: common.as_json(rates) for name, rates in apart.items()},
        "ring": ring_rates.values,
    }
    together = {"ring": ring_rates, **{name: rates["both"] for name, rates in apart.items()}}
    report.panels["one slow worker, images/s"] = together


# --- servers --------------------------------------------------------------------------------------


def served_model(model: str, servers: int) -> common.SideMaker:
    return common.training_sides(model, ["ps async"], ranks=1, servers=servers)[0]


def servers_after_steps(side: common.Side) -> common.Json:
    side.ask({"steps": SERVED_STEPS})
    return side.ask({"servers": True})[0]


def test_balance(report: Report, benchmark: Any) -> None:
    cases = {
        f"{model}, {servers}": served_model(model, servers)
        for model in BALANCED
        for servers in BALANCED_SERVERS
    }
    held: dict[str, list[int]] = {}

    def all_cases() -> None:
        with common.running(list(cases.values())) as sides:
            for case, side in zip(cases, sides, strict=True):
                held[case] = servers_after_steps(side)["held_bytes"]

    benchmark.pedantic(all_cases, rounds=1, iterations=1)
    uneven = {case: max(row) / statistics.mean(row) for case, row in held.items()}
    report.table(
        ["parameters and state held, model and servers", *held],
        [
            ["MB a server", *(", ".join(f"{b / 1e6:.2f}" for b in row) for row in held.values())],
            ["largest ÷ mean", *(f"{ratio:.3f}" for ratio in uneven.values())],
        ],
    )
    report.check("ps.balance", "largest server ÷ mean", common.Samples(list(uneven.values())), 3)
    report.data["held_bytes"] = held


def test_memory_of_servers(report: Report, benchmark: Any) -> None:
    found: common.Json = {}

    def one_start() -> None:
        with common.running([served_model("256_mib", 2)]) as (side,):
            found.update(servers_after_steps(side))

    benchmark.pedantic(one_start, rounds=1, iterations=1)
    used = [
        now - idle for now, idle in zip(found["private_bytes"], found["idle_bytes"], strict=True)
    ]
    share = common.Samples([a / b for a, b in zip(used, found["held_bytes"], strict=True)])
    report.table(
        ["256 MiB of parameters, Adam", *(f"server {server}" for server in range(len(used)))],
        [
            ["parameters and state, MiB", *(f"{b / MIB:.1f}" for b in found["held_bytes"])],
            ["RssAnon above an idle server's, MiB", *(f"{b / MIB:.1f}" for b in used)],
            ["RssAnon of an idle server, MiB", *(f"{b / MIB:.1f}" for b in found["idle_bytes"])],
        ],
    )
    report.check("ps.memory", "memory of a server ÷ its parameters and state", share, 3)
    report.data["memory"] = found


# --- curves ---------------------------------------------------------------------------------------

Curve = list[tuple[float, float]]  # seconds, accuracy


def test_curves(report: Report, benchmark: Any) -> None:
    """Two workers, the same learning rate everywhere."""
    if not FASHION_MNIST.exists():
        pytest.skip("Fashion-MNIST is not there: apt install dataset-fashion-mnist")
    cases = {EQUAL: [1.0, 1.0], f"one {SLOWNESS:g} times slower": [1.0, SLOWNESS]}
    curves: dict[str, dict[str, list[Curve]]] = {case: {} for case in cases}
    rates: dict[str, dict[str, common.Samples]] = {case: {} for case in cases}

    def one_run(seed: int) -> None:
        for case, slowness in cases.items():
            with common.running(curve_sides(seed)) as sides:
                for side in sides:
                    replies = side.ask(
                        {"seconds": CURVE_S, "every_s": CURVE_EVERY_S, "slowness": slowness}
                    )
                    curves[case].setdefault(side.name, []).append(replies[0]["curve"])
                    rate = sum(reply["images"] / reply["elapsed_s"] for reply in replies)
                    rates[case].setdefault(side.name, common.Samples()).add(rate)

    seeds = iter(range(CURVE_RUNS))
    benchmark.pedantic(lambda: one_run(next(seeds)), rounds=CURVE_RUNS, iterations=1)
    report.table(
        [
            f"Fashion-MNIST, 2 workers, {CURVE_S:g} s",
            "images/s",
            f"seconds to {CURVE_ACCURACY:.0%}",
            "accuracy in the end, %",
        ],
        [
            [
                f"{case}: {side}",
                rates[case][side].show(0),
                seconds_to(CURVE_ACCURACY, runs),
                common.Samples([100 * run[-1][1] for run in runs]).show(1),
            ]
            for case, sides in curves.items()
            for side, runs in sides.items()
        ],
    )
    for side in CURVE_SIDES[1:]:
        ends = [[100 * run[-1][1] for run in curves[EQUAL][name]] for name in (side, "ring")]
        report.check(
            f"ps.accuracy.{side}",
            f"Fashion-MNIST, {CURVE_S:g} s: accuracy of {side} - the ring's",
            common.Samples(ends[0]).minus(common.Samples(ends[1])),
        )
    report.data["curves"] = curves
    draw_curves(curves)


def curve_sides(seed: int) -> list[common.SideMaker]:
    return [
        functools.partial(
            common.Side,
            name,
            common.through_ciranda if name == "ring" else common.through_servers(1),
            "ps_curve.py",
            ["--side", name, "--seed", str(seed)],
        )
        for name in CURVE_SIDES
    ]


def seconds_to(wanted: float, runs: list[Curve]) -> str:
    first = [next((at for at, accuracy in run if accuracy >= wanted), None) for run in runs]
    reached = [at for at in first if at is not None]
    return common.Samples(reached).show(1) if len(reached) == len(runs) else "not by all"


def draw_curves(curves: dict[str, dict[str, list[Curve]]]) -> None:
    """Of each side the median over its runs, and the range of all of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, len(curves), figsize=(10, 4), layout="constrained", sharey=True
    )
    for axes, (case, sides) in zip(panels, curves.items(), strict=True):
        for at, (side, runs) in enumerate(sides.items()):
            # A step is short beside the distance of two points, so runs have them at one time.
            points = list(zip(*runs, strict=False))
            seconds = [statistics.median(t for t, _ in point) for point in points]
            values = [sorted(100 * accuracy for _, accuracy in point) for point in points]
            axes.plot(seconds, [statistics.median(v) for v in values], color=f"C{at}", label=side)
            axes.fill_between(
                seconds, [v[0] for v in values], [v[-1] for v in values], color=f"C{at}", alpha=0.15
            )
        axes.set(title=case, xlabel="seconds", ylim=(75, 90))
        axes.legend(loc="lower right")
    panels[0].set_ylabel("accuracy on the test images, %")
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "ps-curves.png", dpi=110)
    plt.close(figure)
