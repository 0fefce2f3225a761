"""nvidia-smi's own XML, as it was printed in public (values of a laptop's report, driver 575.51, October 2025)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from preflight.machine.nvml import read_gpus
from preflight.machine.smi import COMMAND, parse_smi, read_smi

MIB = 2**20
LAPTOP = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<driver_version>575.51.02</driver_version>
	<cuda_version>12.9</cuda_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:01:00.0">
		<product_name>NVIDIA GeForce RTX 4070 Laptop GPU</product_name>
		<uuid>GPU-529b3263-c96d-b557-bc75-697f04917eda</uuid>
		<clocks_event_reasons>
			<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
			<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
			<clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
		</clocks_event_reasons>
		<fb_memory_usage>
			<total>8188 MiB</total>
			<reserved>390 MiB</reserved>
			<used>2026 MiB</used>
			<free>5773 MiB</free>
		</fb_memory_usage>
		<bar1_memory_usage><total>8192 MiB</total><free>8166 MiB</free></bar1_memory_usage>
		<ecc_mode><current_ecc>N/A</current_ecc></ecc_mode>
		<temperature><gpu_temp>41 C</gpu_temp></temperature>
		<gpu_power_readings>
			<current_power_limit>95.00 W</current_power_limit>
			<default_power_limit>55.00 W</default_power_limit>
		</gpu_power_readings>
		<processes>
			<process_info>
				<pid>1802</pid><type>G</type><process_name>/run/sw/bin/Hyprland</process_name>
			</process_info>
			<process_info>
				<pid>4242</pid><type>C</type><process_name>/usr/bin/python3 train.py</process_name>
			</process_info>
		</processes>
	</gpu>
</nvidia_smi_log>
"""


def test_parse_smi_reads_memory_power_heat_and_who_computes():
    (gpu,) = parse_smi(LAPTOP)
    assert (gpu.index, gpu.name, gpu.driver, gpu.cuda) == (0, "NVIDIA GeForce RTX 4070 Laptop GPU", "575.51.02", "12.9")
    assert gpu.memory_total_bytes == (8188 - 390) * MIB
    assert gpu.memory_free_bytes == 5773 * MIB
    assert (gpu.power_limit_watts, gpu.default_power_limit_watts) == (95.0, 55.0)
    assert (gpu.temperature_celsius, gpu.slowdowns, gpu.ecc) == (41.0, (), None)
    assert gpu.holders == ("pid 4242 (python3)",)


def test_parse_smi_knows_older_tags_and_what_is_missing():
    old = LAPTOP.replace("gpu_power_readings", "power_readings").replace("<reserved>390 MiB</reserved>", "")
    old = old.replace("current_power_limit", "power_limit").replace("clocks_event", "clocks_throttle")
    hot = old.replace("hw_thermal_slowdown>Not Active<", "hw_thermal_slowdown>Active<")
    (gpu,) = parse_smi(hot)
    assert (gpu.power_limit_watts, gpu.slowdowns) == (95.0, ("heat",))
    assert gpu.memory_total_bytes == (8188 - 600) * MIB


@pytest.mark.parametrize(
    ("visible", "n_gpus"), [("0", 1), ("GPU-529b", 1), ("1", 0), ("0,7", 1), ("GPU-ffff", 0), (None, 1)]
)
def test_parse_smi_obeys_visible_devices(visible: str | None, n_gpus: int):
    assert len(parse_smi(LAPTOP, visible)) == n_gpus


def test_parse_smi_makes_nothing_of_nonsense():
    assert parse_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == ()


def test_read_gpus_asks_nvidia_smi_when_the_library_is_missing(monkeypatch: pytest.MonkeyPatch):
    def told(command, **options):
        assert tuple(command) == COMMAND
        return subprocess.CompletedProcess(command, 0, stdout=LAPTOP, stderr="")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(subprocess, "run", told)
    gpus, trouble = read_gpus({})
    assert (len(gpus), trouble) == (1, None)


def test_read_smi_is_empty_where_there_is_no_such_program(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_smi(None) == ()
