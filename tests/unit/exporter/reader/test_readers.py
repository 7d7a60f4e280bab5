"""The supervisor of readers: who is killed, who is started anew, and who gets a reader of their own."""

import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from unit.exporter.reader.pipes import FakeProcess, Time, a_round, about, state

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.reader import child, presence, processes, readers
from gpu_profile_exporter.reader.heartbeat import DRIVER, EVENTS, CallInProgress
from gpu_profile_exporter.reader.observed_driver import OPEN_S, REOPEN_S, START_S
from gpu_profile_exporter.reader.pace import HELD_UP_PAUSE_S, PROMPT_FOR_S, SLOW_ROUNDS
from gpu_profile_exporter.reader.presence import REVIVE_S, STALE_S, UNREAD_S
from gpu_profile_exporter.reader.processes import LONGEST_PAUSE_S, OVERDUE_S
from gpu_profile_exporter.reader.readers import LOOK_S, PATIENCE_S, SILENT_S, Readers
from gpu_profile_exporter.reader.registrations import REGISTER_PAUSE_S
from gpu_profile_exporter.reader.settings import COUNTER, HOME, LISTENER, ReaderSettings
from gpu_profile_exporter.reader.wire import WireError

SLOW, PROMPT = 200_000_000, 1_000_000


class Supervisor:
    """Readers over processes that are none, turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = Time()
        for module in (processes, readers):
            monkeypatch.setattr(module, "time", self.time)
        self.started: list[FakeProcess] = []
        self.refuse: OSError | None = None
        #: Whether the driver's events are heard by a process of their own.
        self.listens = False
        #: What the kernel lists; None where that cannot be seen.
        self.there: frozenset[str] | None = frozenset()
        monkeypatch.setattr(presence, "listed", lambda: self.there)
        self.readers = Readers("nvml", clock=FakeClock(), spawn=self._spawn)  # type: ignore[arg-type]
        self.turn()

    def _spawn(self, settings: ReaderSettings) -> FakeProcess:
        if self.refuse is not None:
            raise self.refuse
        self.started.append(FakeProcess(settings, self.time))
        return self.started[-1]

    def turn(self, times: int = 1, *, each_s: float = 0.0) -> None:
        for _ in range(times):
            for process in self.alive:
                process.heard = max(process.heard, self.time.now + each_s if process.where is None else 0)
            self.time.now += each_s
            self.readers._supervise()

    def hear(self, process: FakeProcess, *messages: tuple[object, ...]) -> None:
        process.waiting += messages
        self.readers._receive(process)  # type: ignore[arg-type]

    @property
    def alive(self) -> list[FakeProcess]:
        return [process for process in self.started if not process.killed and process.exit_code is None]

    @property
    def home(self) -> FakeProcess:
        (found,) = [process for process in self.alive if process.key == HOME]
        return found

    @property
    def listener(self) -> FakeProcess:
        (found,) = [process for process in self.alive if process.key == LISTENER]
        return found

    def apart(self) -> Sequence[int | None]:
        return sorted(process.only for process in self.alive if process.only is not None)

    def meet(self, *indices: int, process: FakeProcess | None = None) -> None:
        for index in indices:
            self.hear(process or self.home, about(Device(f"GPU-{index}", index=index), ENERGY), state(f"GPU-{index}"))
        self.hear(process or self.home, ("open", "nvml", "570", "nvml", {}, self.listens))

    def up(self) -> dict[str, bool]:
        return {uuid: found.up for uuid, found in self.readers.states.items()}


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    made = Supervisor(monkeypatch)
    yield made
    for process in made.started:
        if not process.closed:
            process.close()
    made.readers._processes.close()


def test_one_reader_reads_all_and_may_take_its_time_to_open_them(supervisor: Supervisor) -> None:
    supervisor.turn(5)
    assert len(supervisor.started) == 1
    assert (supervisor.home.leave, supervisor.home.settings.open_s) == (frozenset(), OPEN_S)


def test_a_gpu_that_hangs_costs_the_reader_its_life_and_gets_its_own_while_the_others_go_on(
    supervisor: Supervisor,
) -> None:
    supervisor.meet(0, 1, 2)
    first = supervisor.home
    first.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    assert first.killed
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False, "GPU-2": True}
    assert (supervisor.home.leave, supervisor.apart()) == (frozenset({1}), [1])
    assert supervisor.home.settings.open_s == REOPEN_S
    assert supervisor.started[1].only is None  # the others come first
    assert supervisor.readers.restarts["hung"] == 1


def test_a_gpu_in_its_own_reader_is_waited_for_and_then_tried_anew_without_touching_the_others(
    supervisor: Supervisor,
) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    home, own = supervisor.home, supervisor.alive[-1]
    own.where = CallInProgress(1, 1.0, late=True)
    supervisor.turn()
    assert not own.killed
    own.where = CallInProgress(1, PATIENCE_S + 0.1, late=True)
    supervisor.turn(2)
    assert own.killed
    assert (supervisor.apart(), supervisor.home) == ([1], home)


def test_a_gpu_that_answers_promptly_for_a_while_is_taken_home(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    own = supervisor.alive[-1]
    supervisor.meet(0)
    supervisor.hear(own, about(Device("GPU-1", index=1), ENERGY), state("GPU-1"), a_round(took={"GPU-1": PROMPT}))
    supervisor.turn(4, each_s=PROMPT_FOR_S / 5)
    supervisor.hear(own, a_round(took={"GPU-1": SLOW}))
    supervisor.hear(own, a_round(took={"GPU-1": PROMPT}))
    supervisor.turn(4, each_s=PROMPT_FOR_S / 5)
    assert supervisor.apart() == [1]
    supervisor.turn(2, each_s=PROMPT_FOR_S / 5)
    assert own.killed
    assert (supervisor.apart(), supervisor.home.leave) == ([], frozenset())
    assert supervisor.up() == {"GPU-0": True, "GPU-1": True}


def test_a_slow_gpu_gets_a_reader_of_its_own_and_nobody_is_killed(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    home = supervisor.home
    for _ in range(SLOW_ROUNDS):
        assert supervisor.apart() == []
        supervisor.hear(home, a_round(took={"GPU-0": PROMPT, "GPU-1": SLOW}))
        supervisor.turn()
    assert (supervisor.apart(), supervisor.home, home.leave) == ([1], home, frozenset({1}))
    assert sum(supervisor.readers.restarts.values()) == 0
    assert supervisor.up() == {"GPU-0": True, "GPU-1": True}


def test_slow_rounds_that_do_not_follow_each_other_mean_nothing(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    for _ in range(3 * SLOW_ROUNDS):
        supervisor.hear(supervisor.home, a_round(took={"GPU-1": SLOW}), a_round(took={"GPU-1": PROMPT}))
    supervisor.turn()
    assert supervisor.apart() == []


def test_the_only_gpu_stays_however_slow_it_is(supervisor: Supervisor) -> None:
    supervisor.meet(0)
    supervisor.hear(supervisor.home, *[a_round(took={"GPU-0": SLOW})] * 10)
    supervisor.turn()
    assert supervisor.apart() == []


def test_a_reader_that_dies_is_started_again_each_time_a_little_later(supervisor: Supervisor) -> None:
    pauses = []
    for _ in range(8):
        supervisor.home.exit_code = -signal.SIGKILL
        died = supervisor.time.now
        n = len(supervisor.started)
        while len(supervisor.started) == n:
            supervisor.turn(each_s=0.05)
        pauses.append(supervisor.time.now - died)
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.5
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S, abs=0.11)
    assert supervisor.readers.restarts["died"] == 8


def test_gpus_that_were_read_are_read_again_before_their_readings_expire_however_often_the_reader_dies(
    supervisor: Supervisor,
) -> None:
    for life_s in (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 9.0, 9.0):
        supervisor.meet(0, 1)
        supervisor.turn(round(life_s / 0.1), each_s=0.1)
        died, home = supervisor.time.now, supervisor.home
        home.exit_code = -signal.SIGKILL
        while not any(process.key == HOME for process in supervisor.alive):
            supervisor.turn(each_s=0.05)
        # They live for 2 s. The start takes up to 1 s, and samples are sent every `SEND_S`.
        assert supervisor.time.now - died < 1.0 - child.SEND_S


def test_a_reader_that_dies_after_a_long_life_is_started_again_at_once(supervisor: Supervisor) -> None:
    supervisor.turn(60, each_s=1.0)
    supervisor.home.exit_code = -signal.SIGKILL
    supervisor.turn(2)
    assert len(supervisor.started) == 2


@pytest.mark.parametrize("code", [-signal.SIGSEGV, -signal.SIGABRT, 1])
def test_a_gpu_in_whose_call_the_reader_crashed_gets_its_own(supervisor: Supervisor, code: int) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.0, late=False)
    supervisor.home.exit_code = code
    supervisor.turn(3)
    assert (supervisor.home.leave, supervisor.apart()) == (frozenset({1}), [1])
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False}
    assert supervisor.readers.restarts["died"] == 1


@pytest.mark.parametrize(
    ("where", "code"),
    [(CallInProgress(1, 0.0, late=False), -9), (CallInProgress(DRIVER, 0.0, late=False), -11), (None, -11)],
)
def test_a_death_that_is_no_gpu_s_fault_sets_none_apart(
    supervisor: Supervisor, where: CallInProgress | None, code: int
) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where, supervisor.home.exit_code = where, code
    supervisor.turn(3)
    supervisor.turn(each_s=0.5)
    assert (supervisor.home.leave, supervisor.apart()) == (frozenset(), [])


def test_a_gpu_whose_own_reader_died_is_down(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    supervisor.meet(1, process=supervisor.alive[-1])
    assert supervisor.up()["GPU-1"]
    supervisor.alive[-1].exit_code = -11
    supervisor.turn()
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False}


def test_gpus_that_went_while_no_reader_lived_are_lost_and_back_when_they_are_listed_again(
    supervisor: Supervisor,
) -> None:
    supervisor.meet(0, 1, 2)
    supervisor.hear(supervisor.home, about(Device("MIG-1", parent="GPU-1", kind=DeviceKind.MIG, index=1), ENERGY))
    supervisor.home.exit_code = -signal.SIGKILL
    supervisor.turn(2, each_s=1.0)
    supervisor.meet(0)
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False, "GPU-2": False}
    assert supervisor.readers.states["GPU-1"].reason == "the driver does not list it any more"
    supervisor.meet(1)
    assert supervisor.up() == {"GPU-0": True, "GPU-1": True, "GPU-2": False}
    told = [(event.device, event.kind) for event in supervisor.readers.events]
    assert told == [("GPU-1", "lost"), ("GPU-2", "lost"), ("GPU-1", "back")]


def test_a_reader_s_list_says_nothing_of_gpus_that_are_read_apart(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    supervisor.meet(1, process=supervisor.alive[-1])
    supervisor.meet(0)
    assert supervisor.up() == {"GPU-0": True, "GPU-1": True}


def test_a_gpu_that_went_while_it_was_read_apart_is_lost_and_its_reader_is_not_kept(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    supervisor.meet(process=supervisor.alive[-1])
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False}
    assert supervisor.readers.states["GPU-1"].reason == "the driver does not list it any more"
    supervisor.hear(supervisor.alive[-1], a_round())
    supervisor.turn(3, each_s=PROMPT_FOR_S / 2)
    assert (supervisor.apart(), supervisor.home.leave) == ([], frozenset())


def test_a_gpu_that_its_reader_handed_back_and_nobody_lists_is_lost(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    own = supervisor.alive[-1]
    supervisor.meet(0)
    supervisor.hear(own, about(Device("GPU-1", index=1), ENERGY), state("GPU-1"), a_round(took={"GPU-1": PROMPT}))
    supervisor.turn(6, each_s=PROMPT_FOR_S / 5)
    assert own.killed
    supervisor.turn(5, each_s=UNREAD_S / 4)
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False}
    assert supervisor.readers.states["GPU-1"].reason == "no process reads it"
    supervisor.meet(1)
    assert supervisor.up() == {"GPU-0": True, "GPU-1": True}


def test_nvml_is_started_anew_ever_more_seldom_for_a_gpu_that_stays_lost(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.hear(supervisor.home, state("GPU-1", up=False, reason="it fell off the bus"))
    reopened = [0]
    for second in range(200):
        supervisor.turn(each_s=1.0)
        if supervisor.home.reopened > len(reopened) - 1:
            reopened.append(second)
            supervisor.meet(0)
            supervisor.hear(supervisor.home, about(Device("GPU-1", index=1), ENERGY))
    pauses = [after - before for before, after in pairwise(reopened)]
    assert pauses == pytest.approx([REVIVE_S * 2**n for n in range(len(pauses))], abs=2)
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False}
    supervisor.hear(supervisor.home, state("GPU-1"))
    supervisor.turn(300, each_s=1.0)
    assert supervisor.home.reopened == len(pauses)


def test_a_gpu_that_hangs_is_not_looked_for_by_starting_nvml_everywhere(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    supervisor.meet(0)
    supervisor.turn(60, each_s=1.0)
    assert supervisor.home.reopened == 0


def test_where_a_gpu_is_missing_a_reader_that_has_listed_none_yet_blames_nobody_by_an_index(
    supervisor: Supervisor,
) -> None:
    supervisor.meet(0, 1, 2)
    supervisor.hear(supervisor.home, state("GPU-0", up=False, reason="it fell off the bus"))
    supervisor.home.exit_code = -signal.SIGKILL
    supervisor.turn(2, each_s=1.0)
    supervisor.home.where = CallInProgress(1, 1.1, late=True)  # GPU-1 or, as GPU-0 is not counted any more, GPU-2
    supervisor.turn(2)
    assert supervisor.up() == {"GPU-0": False, "GPU-1": True, "GPU-2": True}
    supervisor.hear(
        supervisor.home, about(Device("GPU-1", index=0), ENERGY), ("open", "nvml", "570", "nvml", {}, False)
    )
    supervisor.turn(5, each_s=UNREAD_S / 4)
    assert supervisor.up() == {"GPU-0": False, "GPU-1": True, "GPU-2": False}


def test_a_reader_that_hung_up_is_taken_for_dead_and_not_looked_at_for_ever(supervisor: Supervisor) -> None:
    home = supervisor.home
    home.pipe_closed = True
    supervisor.hear(home)
    assert home.killed
    assert supervisor.readers.restarts["died"] == 1


def test_a_reader_that_talks_garbage_is_started_again(supervisor: Supervisor) -> None:
    home = supervisor.home
    home.error = WireError("a frame of 4294967295 bytes")
    supervisor.hear(home)
    supervisor.turn(each_s=1.0)
    assert home.killed
    assert len(supervisor.started) == 2


def test_a_reader_that_says_nothing_outside_of_the_driver_was_stopped_and_is_replaced(supervisor: Supervisor) -> None:
    home = supervisor.home
    supervisor.turn(each_s=0.1)
    supervisor.time.now += SILENT_S + 0.1
    supervisor.readers._supervise()
    assert home.killed
    supervisor.turn()
    assert len(supervisor.started) == 2


@pytest.mark.parametrize("gpu", [None, DRIVER, 0])
def test_a_reader_that_a_signal_stopped_is_replaced_at_once_wherever_it_was(
    supervisor: Supervisor, gpu: int | None
) -> None:
    supervisor.turn(each_s=0.1)
    home = supervisor.home
    home.stopped = True
    supervisor.time.now += OVERDUE_S / 2
    supervisor.readers._supervise()
    assert not home.killed, "it may go on at once"
    home.where = None if gpu is None else CallInProgress(gpu, OVERDUE_S, late=False, slow=True)
    supervisor.time.now += OVERDUE_S * (gpu is None)
    supervisor.readers._supervise()
    assert home.killed
    supervisor.readers._supervise()
    assert [process.key for process in supervisor.started] == [HOME, HOME]
    assert supervisor.readers.restarts["hung"] == 1
    assert all(supervisor.up().values()), "no call to a GPU hangs"


def test_a_process_without_messages_is_not_replaced_while_its_turns_end(supervisor: Supervisor) -> None:
    home = supervisor.home
    for _ in range(10):
        supervisor.time.now += SILENT_S
        home.turned = supervisor.time.now - 1.0
        supervisor.readers._supervise()
    assert not home.killed
    supervisor.time.now += SILENT_S
    supervisor.readers._supervise()
    assert home.killed


def test_after_the_exporter_itself_was_stopped_a_reader_is_heard_before_it_is_judged(supervisor: Supervisor) -> None:
    supervisor.turn(each_s=0.1)
    home = supervisor.home
    supervisor.time.now += 20
    home.waiting.append(a_round())
    supervisor.readers._supervise()
    assert not home.killed
    assert supervisor.readers.stats.rounds == 1


def test_a_reader_may_take_its_time_to_say_its_first_word(supervisor: Supervisor) -> None:
    supervisor.time.now += START_S - 0.1
    supervisor.readers._supervise()
    assert len(supervisor.alive) == 1
    supervisor.time.now += 0.2
    supervisor.readers._supervise()
    assert supervisor.alive == []


def test_a_reader_that_is_in_the_driver_may_be_silent_as_long_as_its_call_may_take(supervisor: Supervisor) -> None:
    supervisor.home.where = CallInProgress(DRIVER, 20.0, late=False)
    supervisor.time.now += 20
    supervisor.readers._supervise()
    assert len(supervisor.alive) == 1


def test_a_library_of_another_version_is_looked_up_anew_by_another_process(supervisor: Supervisor) -> None:
    home = supervisor.home
    supervisor.hear(home, ("problem", "different versions", True))
    home.stale_since = supervisor.time.now
    supervisor.turn(each_s=STALE_S - 0.5)
    assert not home.killed
    supervisor.turn(each_s=1.0)
    supervisor.turn(each_s=1.0)
    assert home.killed
    assert supervisor.readers.restarts["stale_library"] == 1
    assert supervisor.home is not home


def test_a_driver_that_hangs_as_a_whole_takes_all_down_and_none_apart(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    home = supervisor.home
    home.where = CallInProgress(DRIVER, 30.5, late=True)
    supervisor.turn()
    assert home.killed
    assert supervisor.up() == {"GPU-0": False, "GPU-1": False}
    assert (supervisor.readers.driver, supervisor.readers.problem) == (None, "the driver has not answered for 30 s")
    supervisor.turn(each_s=1.0)
    assert (supervisor.home.leave, supervisor.apart()) == (frozenset(), [])


@pytest.fixture
def heard(supervisor: Supervisor) -> Supervisor:
    """A driver that has events, and three GPUs that are listened to."""
    supervisor.listens = True
    supervisor.meet(0, 1, 2)
    supervisor.turn()
    return supervisor


def events(*codes: int, uuid: str = "GPU-1") -> tuple[object, ...]:
    return "events", [(uuid, 5, "xid", code, "") for code in codes]


def test_events_are_heard_by_a_process_that_outlives_the_readers(heard: Supervisor) -> None:
    listener = heard.listener
    heard.home.where = CallInProgress(1, 0.6, late=True)
    heard.turn(3)
    heard.hear(listener, events(31))
    heard.home.exit_code = -signal.SIGKILL
    heard.turn(3, each_s=1.0)
    heard.hear(listener, events(31, 79))
    assert heard.listener is listener
    assert heard.readers.states["GPU-1"].xids == {31: 2, 79: 1}


def test_only_gpus_that_answer_are_listened_to_for_the_first_time(heard: Supervisor) -> None:
    assert heard.listener.watches == {0: "GPU-0", 1: "GPU-1", 2: "GPU-2"}
    heard.home.where = CallInProgress(1, 0.6, late=True)
    heard.turn(3)
    assert heard.listener.watches == {0: "GPU-0", 2: "GPU-2"}
    heard.meet(1, process=next(process for process in heard.alive if process.only == 1))
    heard.turn()
    assert heard.listener.watches == {0: "GPU-0", 1: "GPU-1", 2: "GPU-2"}


def test_a_driver_without_events_of_its_own_has_no_listener(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.turn(4, each_s=1.0)
    assert [process.key for process in supervisor.alive] == [HOME]


@pytest.mark.parametrize(
    ("where", "code"), [(CallInProgress(1, 0.6, late=True), None), (CallInProgress(1, 0.1, late=False), -11)]
)
def test_a_gpu_that_cannot_be_registered_costs_no_other_its_events(
    heard: Supervisor, where: CallInProgress, code: int | None
) -> None:
    first = heard.listener
    first.where, first.exit_code = where, code
    heard.turn(3, each_s=0.2)
    assert heard.up() == {"GPU-0": True, "GPU-1": True, "GPU-2": True}
    assert heard.listener is not first
    assert heard.listener.watches == {0: "GPU-0", 2: "GPU-2"}
    heard.turn(1, each_s=REGISTER_PAUSE_S)
    assert heard.listener.watches == {0: "GPU-0", 1: "GPU-1", 2: "GPU-2"}


def test_where_looking_for_events_hangs_it_is_tried_ever_more_seldom_and_gpus_are_read_meanwhile(
    heard: Supervisor,
) -> None:
    home, started = heard.home, len(heard.started)
    for _ in range(200):
        for process in heard.alive:
            if process.key == LISTENER:
                process.where = CallInProgress(EVENTS, 0.6, late=True)
        heard.turn(each_s=0.5)
    assert 20 <= len(heard.started) - started <= 30
    assert heard.home is home
    assert heard.up() == {"GPU-0": True, "GPU-1": True, "GPU-2": True}
    assert heard.readers.driver is not None


def test_a_listener_without_a_driver_says_nothing_of_the_gpus(heard: Supervisor) -> None:
    heard.hear(heard.listener, ("problem", "another version", True))
    assert heard.up() == {"GPU-0": True, "GPU-1": True, "GPU-2": True}
    assert heard.readers.driver is not None
    first = heard.listener
    first.stale_since = heard.time.now
    heard.turn(3, each_s=STALE_S)
    assert first.killed


def test_a_release_ends_the_listener_too_and_it_comes_back(heard: Supervisor) -> None:
    heard.time.sleep = lambda seconds: heard.turn(each_s=seconds)  # type: ignore[method-assign]
    assert heard.readers.release(60)
    assert heard.alive == []
    heard.turn(61, each_s=1.0)
    assert {process.key for process in heard.alive} == {HOME, LISTENER}


def test_nvml_is_started_anew_everywhere_when_the_kernel_lists_a_gpu_that_it_did_not(heard: Supervisor) -> None:
    heard.home.where = CallInProgress(1, 0.6, late=True)
    heard.turn(3)
    for there, reopened in (("ab", 1), ("ab", 1), ("a", 1), ("ab", 2), ("cb", 3), ("", 3)):
        heard.there = frozenset(there)
        heard.turn(each_s=LOOK_S)
        assert [process.reopened for process in heard.alive] == [reopened] * 3


@pytest.fixture
def unseen(heard: Supervisor) -> Supervisor:
    """Where the kernel's list cannot be seen, with three GPUs."""
    heard.there = None
    heard.turn(3, each_s=LOOK_S)
    return heard


def test_where_the_kernel_s_list_cannot_be_seen_a_process_counts_and_nvml_is_started_anew_for_more(
    unseen: Supervisor,
) -> None:
    (counter,) = [process for process in unseen.alive if process.key == COUNTER]
    for count, reopened in ((3, 0), (2, 0), (2, 0), (3, 1), (3, 1), (4, 2)):
        unseen.hear(counter, ("count", count))
        assert unseen.home.reopened == unseen.listener.reopened == reopened


def test_a_gpu_that_came_before_the_first_count_is_met_too(unseen: Supervisor) -> None:
    (counter,) = [process for process in unseen.alive if process.key == COUNTER]
    unseen.hear(counter, ("count", 4))
    assert unseen.home.reopened == 1


def test_a_counter_that_hangs_or_dies_concerns_no_gpu(unseen: Supervisor) -> None:
    home = unseen.home
    for where, code in ((CallInProgress(DRIVER, 31.0, late=True), None), (None, -11)):
        (counter,) = [process for process in unseen.alive if process.key == COUNTER]
        counter.where, counter.exit_code = where, code
        unseen.turn(3, each_s=LONGEST_PAUSE_S)
        assert [process.key for process in unseen.alive].count(COUNTER) == 1
    assert unseen.home is home
    assert unseen.up() == {"GPU-0": True, "GPU-1": True, "GPU-2": True}
    assert unseen.readers.driver is not None


def test_only_nvml_is_counted(supervisor: Supervisor) -> None:
    supervisor.there = None
    supervisor.hear(supervisor.home, ("open", "smi", "570", "smi", {}, False))
    supervisor.turn(5, each_s=LOOK_S)
    assert [process.key for process in supervisor.alive] == [HOME]


def test_what_a_reader_said_before_it_ended_is_taken_in(supervisor: Supervisor) -> None:
    supervisor.meet(0)
    supervisor.home.waiting.append(events(31, uuid="GPU-0"))
    supervisor.home.exit_code = -signal.SIGKILL
    supervisor.readers._supervise()
    assert supervisor.readers.states["GPU-0"].xids == {31: 1}


def test_a_reader_that_does_not_die_keeps_its_gpu_waiting_and_no_other(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    held = supervisor.home
    held.mortal, held.where = False, CallInProgress(1, 0.6, late=True)
    supervisor.turn(4, each_s=1.0)
    assert (supervisor.home.leave, supervisor.apart()) == (frozenset({1}), [])
    assert not held.closed
    assert held.pid in supervisor.readers.pids
    held.exit_code = -9
    supervisor.turn(2)
    assert held.closed
    assert supervisor.apart() == [1]


def test_a_reader_that_the_driver_as_a_whole_holds_is_not_replaced_before_it_is_gone(supervisor: Supervisor) -> None:
    held = supervisor.home
    held.mortal, held.where = False, CallInProgress(DRIVER, 31.0, late=True)
    supervisor.turn(5, each_s=1.0)
    assert supervisor.alive == []
    held.exit_code = -9
    supervisor.turn(2, each_s=1.0)
    assert supervisor.home is not held


def test_after_a_release_nothing_holds_a_gpu_until_its_time_is_over(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    with_own = list(supervisor.alive)
    supervisor.time.sleep = lambda seconds: supervisor.turn(each_s=seconds)  # type: ignore[method-assign]
    assert supervisor.readers.release(60)
    assert all(process.killed for process in with_own)
    assert supervisor.readers.restarts["released"] == 2
    assert supervisor.up() == {"GPU-0": False, "GPU-1": False}
    assert "released on request" in supervisor.readers.problem
    supervisor.turn(59, each_s=1.0)
    assert supervisor.alive == []
    assert supervisor.readers.stats.turned_ns == supervisor.readers.clock.now_ns()
    supervisor.turn(2, each_s=1.0)
    assert supervisor.home.leave == frozenset()


def test_a_release_that_a_call_holds_up_says_so(supervisor: Supervisor) -> None:
    supervisor.home.mortal = False
    supervisor.time.sleep = lambda seconds: supervisor.turn(each_s=seconds)  # type: ignore[method-assign]
    assert not supervisor.readers.release(60, timeout_s=1.0)


def test_a_release_of_no_time_ends_the_one_before_it(supervisor: Supervisor) -> None:
    supervisor.time.sleep = lambda seconds: supervisor.turn(each_s=seconds)  # type: ignore[method-assign]
    assert supervisor.readers.release(600)
    assert supervisor.readers.release(0)
    supervisor.turn(2)
    assert len(supervisor.alive) == 1


def test_a_process_that_cannot_be_started_is_tried_again_and_the_reason_is_told(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    supervisor.refuse = OSError(11, "Resource temporarily unavailable")
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(4)
    assert supervisor.alive == []
    assert "Resource temporarily unavailable" in supervisor.readers.problem
    supervisor.refuse = None
    supervisor.turn(4, each_s=LONGEST_PAUSE_S)
    assert (supervisor.home.leave, supervisor.apart()) == (frozenset({1}), [1])


def test_how_often_readers_were_started_again_is_told_from_0_on(supervisor: Supervisor) -> None:
    found = {reading.attributes["reason"]: reading.value for reading in supervisor.readers.readings(0)}
    assert found == {"died": 0, "hung": 0, "released": 0, "stale_library": 0}


# ---------------------------------------------------------------------- a GPU that holds the others up


def may_isolate(supervisor: Supervisor, index: int, seconds: float = 0.3) -> FakeProcess:
    """The process that reads all has been in a call to this GPU for half of what that may take."""
    process = supervisor.home
    process.where = CallInProgress(index, seconds, late=False, slow=True)
    supervisor.turn()
    return process


def test_a_call_that_takes_long_keeps_its_process_and_another_one_reads_the_others(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1, 2)
    first = may_isolate(supervisor, 1)
    assert not first.killed
    assert (first.key, first.only, first.uuids) == (1, 1, {"GPU-1"})
    assert supervisor.home is not first
    assert supervisor.home.settings.leave == (1,)
    assert set(supervisor.up().values()) == {True}
    assert supervisor.readers.restarts.total() == 0


def test_a_call_that_never_returns_is_told_of_and_its_process_ended_while_the_others_are_read(
    supervisor: Supervisor,
) -> None:
    supervisor.meet(0, 1)
    first = may_isolate(supervisor, 1)
    supervisor.meet(0)
    first.where = CallInProgress(1, 0.6, late=True, slow=True)
    supervisor.turn()
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False}
    assert supervisor.readers.states["GPU-1"].reason == "a call to it hangs in the driver"
    home = supervisor.home
    first.where = CallInProgress(1, PATIENCE_S + 0.1, late=True, slow=True)
    supervisor.turn()
    assert first.killed
    assert supervisor.home is home
    assert supervisor.readers.restarts["hung"] == 1


def test_a_gpu_that_answered_late_once_is_read_with_the_others_again(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    first = may_isolate(supervisor, 1)
    supervisor.meet(0)
    first.where = None
    for _ in range(round(PROMPT_FOR_S) + 2):
        supervisor.hear(first, a_round(took={"GPU-1": PROMPT}))
        supervisor.turn(each_s=1.0)
    assert first.killed
    assert supervisor.apart() == []
    assert supervisor.home.leave == frozenset()


def test_one_after_another_and_at_most_half_of_the_gpus_are_read_apart(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1, 2, 3, 4)
    may_isolate(supervisor, 1)
    supervisor.meet(0, 2, 3, 4)
    may_isolate(supervisor, 2)
    assert supervisor.apart() == [1]  # too soon
    supervisor.time.now += HELD_UP_PAUSE_S
    may_isolate(supervisor, 2)
    supervisor.meet(0, 3, 4)
    supervisor.time.now += HELD_UP_PAUSE_S
    may_isolate(supervisor, 3)
    assert supervisor.apart() == [1, 2]


def test_two_that_hang_at_once_are_both_read_apart_without_a_pause_between(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1, 2, 3)
    first = may_isolate(supervisor, 1)
    first.where = CallInProgress(1, 0.6, late=True, slow=True)  # told as lost by now
    second = may_isolate(supervisor, 3)  # while it opens its GPUs
    assert not second.killed
    assert (second.only, second.uuids) == (3, {"GPU-3"})
    assert supervisor.home.settings.leave == (1, 3)
    supervisor.meet(0, 2)
    assert supervisor.up() == {"GPU-0": True, "GPU-1": False, "GPU-2": True, "GPU-3": True}


def test_a_process_that_opens_the_only_gpu_left_to_it_stays(supervisor: Supervisor) -> None:
    supervisor.meet(0, 1)
    may_isolate(supervisor, 1)
    second = may_isolate(supervisor, 0)
    assert supervisor.home is second


@pytest.mark.parametrize(("gpus", "index"), [((0,), 0), ((0, 1), DRIVER), ((0, 1), EVENTS)])
def test_who_holds_nobody_up_stays(supervisor: Supervisor, gpus: Sequence[int], index: int) -> None:
    supervisor.meet(*gpus)
    first = may_isolate(supervisor, index)
    assert supervisor.home is first
    assert supervisor.apart() == []


def test_where_the_next_process_counts_gpus_otherwise_the_one_that_was_left_is_started_anew(
    supervisor: Supervisor,
) -> None:
    supervisor.meet(0, 1, 2)
    first = may_isolate(supervisor, 1)
    # GPU 0 is gone, and what was 2 is 1 now, which is the one to leave.
    supervisor.hear(supervisor.home, ("open", "nvml", "570", "nvml", {}, False))
    supervisor.turn()
    assert first.killed
    assert supervisor.apart() == [1]
    assert supervisor.up()["GPU-2"]


def test_a_gpu_that_hangs_while_another_is_gone_is_told_of_before_its_process_is_started_anew(
    supervisor: Supervisor,
) -> None:
    supervisor.meet(0, 1, 2)
    supervisor.hear(supervisor.home, state("GPU-0", up=False, reason="lost"))
    first = may_isolate(supervisor, 1)
    supervisor.meet(2)
    assert first.killed
    assert supervisor.up() == {"GPU-0": False, "GPU-1": False, "GPU-2": True}
    assert supervisor.readers.states["GPU-1"].reason == "a call to it hangs in the driver"


def test_processes_are_checked_when_samples_arrive_and_ten_times_a_second_when_these_are_overdue(
    supervisor: Supervisor,
) -> None:
    pause_s = supervisor.readers._processes.pause_s
    home = supervisor.home
    assert pause_s(supervisor.time.now) == processes.SUPERVISE_S  # until its first samples
    supervisor.time.now += 1.0
    home.heard = supervisor.time.now
    assert pause_s(supervisor.time.now) == pytest.approx(processes.OVERDUE_S)
    home.heard -= child.SEND_S
    home.turned = supervisor.time.now  # a turn without a message
    assert pause_s(supervisor.time.now) == pytest.approx(processes.OVERDUE_S)
    assert pause_s(supervisor.time.now + processes.OVERDUE_S - 0.15) == pytest.approx(0.15)
    assert pause_s(supervisor.time.now + 2 * processes.OVERDUE_S) == processes.SUPERVISE_S
    home.where = CallInProgress(1, 0.05, late=False)
    assert pause_s(supervisor.time.now + 2 * processes.OVERDUE_S) < processes.SUPERVISE_S / 2
    home.where = CallInProgress(1, 0.15, late=False, slow=True)
    assert pause_s(supervisor.time.now + 2 * processes.OVERDUE_S) == processes.SUPERVISE_S
    home.where = CallInProgress(DRIVER, 0.05, late=False)
    assert pause_s(supervisor.time.now + 2 * processes.OVERDUE_S) == processes.SUPERVISE_S
    home.exit_code = -signal.SIGSEGV
    supervisor.turn()  # now its successor waits for its pause
    assert pause_s(supervisor.time.now) == processes.SUPERVISE_S


def test_the_supervisor_waits_on_while_turns_end_and_checks_as_soon_as_they_do_not(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, hung_at, waits = supervisor.home, supervisor.time.now + 3.05, []

    def select(timeout: float) -> list[object]:
        waits.append(timeout)
        supervisor.time.now += timeout
        home.turned = min(supervisor.time.now, hung_at) // 0.1 * 0.1
        return []

    home.heard = home.started + 0.01
    monkeypatch.setattr(supervisor.readers._processes._selector, "select", select)
    assert supervisor.readers._processes.ready() == []
    assert supervisor.time.now - hung_at <= processes.OVERDUE_S
    assert min(waits[:-1]) > processes.SUPERVISE_S


def test_readers_are_ordered_to_send_their_samples_and_other_processes_are_not(supervisor: Supervisor) -> None:
    supervisor.listens = True
    supervisor.meet(0, 1)
    supervisor.home.where = CallInProgress(1, 0.6, late=True)
    supervisor.turn(3)
    assert {process.key for process in supervisor.alive} == {HOME, LISTENER, 1}
    found = supervisor.readers._processes
    found.wake()
    assert found.ready() == []
    assert not any(process.sends for process in supervisor.alive)
    for _ in range(1 << 17):
        found.request_samples()  # more than fit in a pipe
    assert found.ready() == []
    assert {process.key: process.sends for process in supervisor.alive} == {HOME: 1, LISTENER: 0, 1: 1}
