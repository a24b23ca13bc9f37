"""Searches on the workers of a Dask cluster.

A search sends what it found as events of the scheduler, and receives what others found in a variable of the scheduler,
so that what is known outlives every worker. A search whose worker is lost starts again on another one.
"""

import contextlib
import logging
import pickle
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.control import Ending, Outcome, Progress
from remat_cli.errors import SolverFailed, SolverUnavailable, UsageError
from remat_cli.extras import install_command
from remat_cli.graph.model import Graph
from remat_cli.planning.coordinator import Coordinator, Ended, Event, Improved, Lost, Run, Update
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solution_pool import PooledRuns
from remat_cli.spec import format_spec
from remat_cli.strategies.base import Found, Known, NotFound, Task

CONNECT_S = 20
"""Seconds to wait for a scheduler."""
_POLL_S = 0.1
_COUNT_EVERY_S = 1.0
"""Seconds after which workers are counted again."""
_EXCHANGE_EVERY_S = 0.5
"""Seconds after which a search sends what it found and asks what others found. Untuned."""
_GET_S = 20.0
"""Seconds to wait for the answer of the scheduler."""
_RETRIES = 2


def search_on_cluster(
    address: str, runs: PooledRuns, budgets: Iterable[int], listener: Callable[[Progress], None] | None = None
) -> dict[int, Outcome]:
    """Search on the Dask cluster of a scheduler (``tcp://host:8786``); how the searches for each budget in bytes ended.

    The pool of ``runs`` gets what is found.

    Raises:
        SolverUnavailable: If ``distributed`` is not installed.
        UsageError: If no scheduler answers.
    """
    with dask_cluster(address, runs.job.graph, runs.job.options) as cluster:
        return Coordinator.of(runs, cluster, budgets, listener).run()


def connected(address: str) -> Any:
    """A client of the scheduler at ``address``.

    Raises:
        SolverUnavailable: If ``distributed`` is not installed.
        UsageError: If no scheduler answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise SolverUnavailable("Dask is not installed", hint=f"install it with: {install_command('dask')}") from None
    try:
        return Client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(
            f"no Dask scheduler answers at {address}: {reason}", hint="start one with: dask scheduler"
        ) from None


def held(client: Any, graph: Graph) -> Any:
    """The graph as the result of a task, sent once.

    Dask recomputes the result of a lost task. Scattered data would be lost with its workers.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # it has to be sent, and it is sent only once
        return client.submit(_itself, graph, pure=False)


def _itself(graph: Graph) -> Graph:
    return graph


@dataclass(slots=True)
class DaskCluster:
    """A cluster, as :class:`~remat_cli.planning.coordinator.Cluster` says.

    Attributes:
        client: The client.
        options: How to solve; budgets, strategies, seeds and times are those of each search.
        sent: The graph, as a result on the cluster.
        name: Names the variables and events of this command.
        search: Makes one search on a worker, as :func:`searched` does.
        happened: Events that were not taken yet.
        runs: The searches that were started, by number.
        futures: Their results, while they run.
        variables: What is sent to the searches for each budget.
        counted: When the workers were counted last, and how many searches they run at a time.
    """

    client: Any
    options: SolveOptions
    sent: Any
    name: str
    search: Callable[..., bytes]
    happened: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    runs: dict[int, Run] = field(default_factory=dict)
    futures: dict[int, Any] = field(default_factory=dict)
    variables: dict[int, Any] = field(default_factory=dict)
    counted: tuple[float, int] = (0.0, 0)

    def slots(self) -> int:
        """One search for each thread of a worker."""
        at_s, slots = self.counted
        if time.monotonic() - at_s > _COUNT_EVERY_S:
            slots = sum(self.client.nthreads().values())
            self.counted = time.monotonic(), slots
        return slots

    def start(self, run: Run, known: Known | None) -> None:
        """Submit the search."""
        self.runs[run.number] = run
        future = self.client.submit(
            self.search,
            self.sent,
            self.options,
            run,
            known,
            self.name,
            retries=_RETRIES,
            pure=False,
            priority=-run.number,
        )
        self.futures[run.number] = future
        future.add_done_callback(lambda done: self._ended(run, done))

    def _ended(self, run: Run, future: Any) -> None:
        """Put the end of a search among the events; called by Dask, in a thread of its own."""
        if self.futures.pop(run.number, None) is None:
            return
        try:
            answer, outcome, worked_s = pickle.loads(future.result(timeout=_GET_S))
        except Exception as error:  # a cluster may raise anything: cancelled futures, lost workers
            self.happened.put(Lost(run, " ".join(f"{type(error).__name__}: {error}".split())))
        else:
            self.happened.put(Ended(run, answer, outcome, worked_s))

    def send(self, budget_bytes: int, update: Update) -> None:
        """Set the variable of the budget."""
        from distributed import Variable

        if budget_bytes not in self.variables:
            self.variables[budget_bytes] = Variable(_variable(self.name, budget_bytes), client=self.client)
        self.variables[budget_bytes].set(pickle.dumps(update))

    def events(self) -> list[Event]:
        """See the class."""
        found: list[Event] = []
        with contextlib.suppress(queue.Empty):
            found.append(self.happened.get(timeout=_POLL_S))
            while True:
                found.append(self.happened.get_nowait())
        return found

    def receive(self, event: tuple[float, Any]) -> None:
        """Take an event of the scheduler; called by Dask."""
        number, message = event[1]
        if number in self.runs:
            self.happened.put(Improved(self.runs[number], pickle.loads(message)))

    def close(self) -> None:
        """End the searches that still run, and remove what is left on the scheduler."""
        left, self.futures = list(self.futures.values()), {}
        self.client.cancel(left, asynchronous=False)
        for variable in self.variables.values():
            variable.delete()


@contextlib.contextmanager
def dask_cluster(
    address: str, graph: Graph, options: SolveOptions, search: Callable[..., bytes] | None = None
) -> Iterator[DaskCluster]:
    """The cluster of a scheduler, for one command; on its workers runs ``search`` or :func:`searched`.

    Raises:
        SolverUnavailable, UsageError: As for :func:`connected`.
    """
    client = connected(address)
    # Cancelled searches are not worth a warning each.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        name = f"remat-{uuid.uuid4().hex}"
        alone = replace(options, started_s=None, start=None, threads=options.threads or 1)
        cluster = DaskCluster(client, alone, held(client, graph), name, search or searched)
        client.subscribe_topic(name, cluster.receive)
        try:
            yield cluster
        finally:
            cluster.close()
            client.unsubscribe_topic(name)
    finally:
        client.close()


def _variable(name: str, budget_bytes: int) -> str:
    return f"{name}-{budget_bytes}"


def searched(graph: Graph, options: SolveOptions, run: Run, known: Known | None, name: str) -> bytes:
    """Make one search on a worker; its answer, how it ended and its seconds, pickled for Dask's sake.

    Raises:
        RematError: Of any kind but a failed solver, which is an answer.
    """
    mine = replace(options, strategy=run.strategy, seed=run.seed, time_limit_s=run.most_s)
    job = Job.of(graph, mine, None)
    messenger = Messenger(run, name, job.context.control.cancelled, format_spec(job.strategy.name, job.strategy))
    with messenger.going():
        task = Task(graph, run.budget_bytes, known, options.host, news=messenger.news)
        try:
            answer, ending = job.attempt(task, witness=messenger.found)
        except SolverFailed as error:
            answer, ending = NotFound(f"the solver failed: {error.message}"), Ending(Outcome.SOLVER_FAILED)
    if isinstance(answer, Found):
        answer = messenger.named(answer)
    return pickle.dumps((answer, ending.outcome, time.monotonic() - job.started_s))


@dataclass(slots=True)
class Messenger:
    """Exchanges what a search finds with the others, in a thread of its own.

    Attributes:
        run: The search.
        name: Names the variables and events of its command.
        stop: Stops the search.
        maker: Text form of its strategy.
        latest: What it found and did not send yet.
        update: What it received last.
        ended: Set at its end.
        lock: Guards ``latest`` and ``update``.
    """

    run: Run
    name: str
    stop: threading.Event
    maker: str
    latest: Found | None = None
    update: Update | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def named(self, found: Found) -> Found:
        """With the maker of the schedule."""
        return replace(found, maker=found.maker or self.maker)

    def found(self, found: Found) -> None:
        """Take what the search found."""
        with self.lock:
            self.latest = found

    def news(self) -> tuple[Found, ...]:
        """What the others found since the last call."""
        with self.lock:
            update, self.update = self.update, None
        return () if update is None or update.found is None else (update.found,)

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """While inside, messages are exchanged."""
        from distributed import Variable, get_client, get_worker

        worker = get_worker()
        variable = Variable(_variable(self.name, self.run.budget_bytes), client=get_client())
        asked = (worker, worker.get_current_task(), variable)
        thread = threading.Thread(target=self._go, args=asked, name="remat-exchange", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.ended.set()
            thread.join(_GET_S)

    def _go(self, worker: Any, task: str, variable: Any) -> None:
        before = b""
        while not self.ended.wait(_EXCHANGE_EVERY_S):
            if (state := worker.state.tasks.get(task)) is None or state.state == "cancelled":
                self.stop.set()  # the command has ended, in whatever way
                return
            with self.lock:
                news, self.latest = self.latest, None
            if news is not None:
                worker.log_event(self.name, (self.run.number, pickle.dumps(self.named(news))))
            try:
                message = variable.get(timeout=_GET_S)
            except Exception:  # the scheduler is gone or busy: the search goes on alone
                continue
            if message != before:
                before, update = message, pickle.loads(message)
                with self.lock:
                    self.update = update
                if update.closed:
                    self.stop.set()
