from __future__ import annotations

from penstock.metering.fleet import DAY_QUARTERS, Fleet


def test_a_fleet_is_a_function_of_its_seed():
    one, two, other = Fleet(3, seed=1), Fleet(3, seed=1), Fleet(3, seed=2)
    assert one.payload(2, 17) == two.payload(2, 17) != other.payload(2, 17)


def test_every_meter_of_a_fleet_has_one_device_and_a_day_has_a_curve():
    fleet = Fleet(devices=3, meters=4)
    meters = [reading.meter for device in range(3) for reading in fleet.readings(device, 0)]
    assert sorted(map(int, meters)) == list(range(1, 13))
    used = [sum(r.energy_wh for r in fleet.readings(0, quarter)) for quarter in range(DAY_QUARTERS)]
    assert max(used[68:88]) > 2 * max(used[:24])
    assert min(used) > 0
