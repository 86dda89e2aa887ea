"""What the feed says when data or loader processes fail, or when they are asked for wrongly."""

import os
import signal
import threading

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from melodeon.core.errors import UsageError, WorkerLost
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Feed, lost_loader_process
from tests.runtime.feed_datasets import Noisy, Numbers, started

# More loader processes than a small machine has cores are meant here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

V = 4


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def plan() -> EpochPlan:
    return EpochPlan(22, V, 2)


class Broken(Numbers):
    fails = True

    def __getitem__(self, index):
        if index == 5 and self.fails:
            raise KeyError("picture 5 is unreadable")
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failing_sample_keeps_its_traceback_and_loses_nothing_else(plan, num_workers):
    dataset = Broken(22)
    with started(dataset, plan, num_workers=num_workers, shuffle=False) as feed:
        assert feed.take(0, 0).data.tolist() == [0, 4]
        for _ in range(2):
            with pytest.raises(KeyError, match="picture 5 is unreadable") as caught:
                feed.take(0, 1)
        if num_workers:
            assert "in __getitem__" in str(caught.value)
        else:
            dataset.fails = False
            assert feed.take(0, 1).data.tolist() == [1, 5]
        assert feed.take(0, 2).data.tolist() == [2, 6]


class Deadly(Numbers):
    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_killed_loader_process_is_reported_in_a_sentence(plan):
    error: BaseException | None = None
    with started(Deadly(22), plan, num_workers=1, prefetch_factor=1, shuffle=False) as feed:
        try:
            take_all = [feed.take(0, rank) for rank in range(V)]
            pytest.fail(f"{take_all} came from a process that was killed")
        except WorkerLost as lost:
            error = lost
        except RuntimeError as raw:  # PyTorch's signal handler may speak up in any line, also outside `take`
            error = lost_loader_process(raw)
    assert str(error).startswith("a loader process is gone (DataLoader worker (pid")
    assert "num_workers=0" in str(error)


def put_tensor(queue):
    queue.put(torch.ones(3))


def test_a_batch_of_a_process_that_is_gone_is_reported_in_the_same_sentence():
    processes = torch.multiprocessing.get_context("fork")
    queue = processes.Queue()
    sender = processes.Process(target=put_tensor, args=(queue,))
    sender.start()
    sender.join()
    with pytest.raises((OSError, EOFError)) as raised:
        queue.get()
    lost = lost_loader_process(raised.value)
    assert isinstance(lost, WorkerLost)
    assert "when its batch was fetched), most often for lack of memory" in str(lost)


class Slow(Numbers):
    def __getitem__(self, index):
        threading.Event().wait(0.5)
        return index


def test_a_timeout_is_reported_in_a_sentence(plan):
    sentence = r"no loader process answered .*0\.1 seconds.*: raise timeout"
    with started(Slow(22), plan, num_workers=1, timeout=0.1) as feed, pytest.raises(WorkerLost, match=sentence):
        feed.take(0, 0)


def test_other_errors_are_not_taken_for_a_lost_process():
    assert lost_loader_process(RuntimeError("Caught RuntimeError in DataLoader worker process 0.")) is None
    assert lost_loader_process(ValueError("DataLoader worker (pid 1) exited")) is None
    assert lost_loader_process(ConnectionResetError("of the dataset's own")) is None


def test_a_dataset_that_changes_length_is_refused_when_an_epoch_starts(plan):
    dataset = Noisy()
    with started(dataset, plan) as feed:
        feed.take(0, 0)
        dataset.length = 21
        feed.take(2, 0)
        with pytest.raises(UsageError, match="has 21 samples and had 22 when the loader was made: a dataset must keep"):
            feed.take(3, 0)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))


class NoLength(Dataset):
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Stream(), "Stream is an IterableDataset, .*: use a dataset with __len__ and __getitem__"),
        (NoLength(), "NoLength has no length: give it a __len__"),
        ({1, 2}, "set has no __getitem__"),
        (Noisy(4), "the dataset has 4 samples and had 22"),
    ],
)
def test_datasets_that_cannot_be_used_get_a_sentence(plan, dataset, sentence):
    with pytest.raises(UsageError, match=sentence):
        Feed(dataset, plan=plan, seed=0, shuffle=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_workers": -1}, "num_workers=-1 must be a whole number"),
        ({"num_workers": 1.5}, "num_workers=1.5"),
        ({"prefetch_factor": 0}, "prefetch_factor=0 must be a whole number of at least 1"),
        ({"timeout": -1}, "timeout=-1 must be a number of seconds"),
        ({"timeout": float("nan")}, "timeout=nan must be a number of seconds"),
        ({"timeout": float("inf")}, "timeout=inf must be a number of seconds"),
        ({"num_workers": 1, "multiprocessing_context": "thread"}, "DataLoader refuses the loader's options: .*thread"),
    ],
)
def test_bad_options_get_a_sentence(plan, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Feed(Noisy(), plan=plan, seed=0, shuffle=True, **options)
