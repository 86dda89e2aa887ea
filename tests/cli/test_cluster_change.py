"""`edit`, `scale` and `cancel` of the cluster's jobs."""

import json
import re
import shlex

from tests.cli.clusters import SHORT
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import job as running_job
from tests.control.api.serving import Serving


def test_edit_judges_again(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml", "--deadline", "2d")
    code, out, _ = melodeon("edit", "cnn-1", "--deadline", "5m", "--priority", "2")
    assert (code, out.startswith("rejected   cnn-1 stays as it was: ")) == (3, True)
    command = out.splitlines()[-1].removeprefix("next       ")
    assert re.fullmatch(r"melodeon edit cnn-1 --deadline \d+h\d*m? --priority 2\.0", command)
    code, out, _ = melodeon(*shlex.split(command)[1:])
    assert (code, out.startswith("changed    cnn-1 is changed (deadline, priority)")) == (0, True)
    assert melodeon("edit", "cnn-1", "--deadline", "none", "-o", "json")[0] == 0
    assert cluster.controller.job("cnn-1").deadline_at is None
    assert "nothing is changed: give one of --deadline, --on-miss" in melodeon("edit", "cnn-1")[2]


def test_scale_is_the_operators_word(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    code, out, _ = melodeon("scale", "cnn-1", "2")
    assert (code, out.startswith("done    cnn-1 shall have 2 workers; it has ")) == (0, True)
    assert out.splitlines()[1] == "next    melodeon scale cnn-1 auto"
    assert cluster.controller.job("cnn-1").override == 2
    assert json.loads(melodeon("scale", "cnn", "auto", "-o", "json")[1])["override"] is None
    for args, sentence in (
        (["cnn-1", "9"], "9 workers are not possible for cnn-1: it may have 1 to 4 here"),
        (["cnn-1", "many"], "N 'many' is no number of workers"),
        (["cnn-1", "--out", "1"], "job cnn-1 is the cluster's, which places its workers itself"),
        (["cnn-1"], "N 'cnn-1' is no number of workers"),
        (["auto"], "N auto is for jobs of the cluster, and none was named"),
    ):
        code, _, err = melodeon("scale", *args)
        assert (code, sentence in err) == (2, True), err


def test_cancel_is_for_good(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    code, out, _ = melodeon("cancel", "cnn-1", "--wait")
    assert (code, out.splitlines()[0]) == (0, "cancelled  cnn-1, cancelled by root")
    assert melodeon("cancel", "cnn-1")[0] == 0, "asked again, nothing changes"
    melodeon("submit", "work/job.yaml", *SHORT, "--wait")
    code, _, err = melodeon("cancel", "short-2")
    assert (code, "is done already: there is nothing to cancel" in err) == (2, True)
    assert melodeon("cancel", "nobody")[0] == 4


def test_a_whole_name_here_is_meant_before_the_beginning_of_a_clusters(cluster: Serving, melodeon: Melodeon) -> None:
    melodeon("submit", "work/job.yaml")
    with running_job(cluster.work, "cn") as agent:
        assert melodeon("scale", "cn", "3", "--no-wait")[0] == 0
        assert [ask.values for ask in agent.asked if ask.what == "scale"] == [{"n": 3}]
        assert cluster.controller.job("cnn-1").override is None
    assert melodeon("scale", "cn", "2")[0] == 0, "nothing here is called so any more"
    assert cluster.controller.job("cnn-1").override == 2
