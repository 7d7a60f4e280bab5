from gpu_profile.catalogue import SIGNALS, Tier
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver import Driver
from gpu_profile.driver.null import NullDriver

GPU = Device("GPU-1")


def test_it_has_no_devices_and_reads_nothing() -> None:
    driver: Driver = NullDriver("no GPU here")
    assert driver.name == "none"
    assert not driver.version
    nothing = (
        driver.devices(),
        driver.read(GPU, Tier.FAST),
        driver.drain(GPU),
        driver.boundary(GPU),
        driver.events(),
        driver.processes(GPU),
    )
    assert [list(each) for each in nothing] == [[]] * 6
    driver.close()
    driver.close()


def test_it_says_its_reason_for_every_signal() -> None:
    driver = NullDriver("no GPU here")
    assert driver.reason == "no GPU here"
    capabilities = driver.capabilities(GPU)
    assert list(capabilities) == list(SIGNALS)
    assert {(each.available, each.reason) for each in capabilities.values()} == {(False, "no GPU here")}
