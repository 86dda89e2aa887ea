"""The ideal is what the devices could have given for as long as the job had them."""

import pytest
import transient


def test_a_job_that_is_slow_to_give_back_is_held_to_the_devices_that_it_still_had() -> None:
    speeds = {transient.PERSISTENT: 10.0, transient.LENT: 20.0}
    assert transient.ideal_steps(speeds, lent_s=50.0, rest_s=50.0, back_s=0.0) == pytest.approx(1500.0)
    assert transient.ideal_steps(speeds, lent_s=50.0, rest_s=50.0, back_s=2.0) == pytest.approx(1520.0)
