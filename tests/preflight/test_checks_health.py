"""What cards, driver and surroundings say about a plan; numbers of public threads where named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines import GIB, MIB, MakePlan, around, found, gpu, machine

from preflight.plan import Precision
from preflight.verdict.judge import Severity


@pytest.mark.parametrize(
    ("built", "driver", "cuda", "said"),
    [
        (
            "13.0",
            "570.86.15",
            "12.8",
            "CUDA 13.0, which needs driver 580; here is 570.86.15, which runs CUDA 12.8 at most",
        ),
        ("12.8", "515.65.01", "11.7", "needs driver 525"),
        ("12.8", "525.60.13", "12.0", None),  # within a major release newer ones run too
        ("13.0", "580.95.05", "13.0", None),
        (None, "450.1", "11.0", None),
        ("99.0", "450.1", "11.0", None),  # nobody knows what that needs
    ],
)
def test_driver_and_torch_must_agree(make_plan: MakePlan, built: str, driver: str, cuda: str, said: str | None):
    here = machine(gpu(driver=driver, cuda=cuda), around=around(torch_cuda=built))
    finding = found(make_plan(), here, "software.driver")
    assert (finding is None) == (said is None)
    if finding is not None and said is not None:
        assert said in finding.message
        assert finding.exit_code == 4
        assert f"whl/cu{cuda.replace('.', '')}" in finding.fix


@pytest.mark.parametrize(
    ("precision", "capability", "fix"),
    [
        (Precision.bf16, 7.5, "trainer.precision=fp16"),
        (Precision.bf16, 6.1, "trainer.precision=fp32"),
        (Precision.tf32, 7.0, "trainer.precision=fp16"),
        (Precision.bf16, 8.0, None),
        (Precision.fp32, 6.1, None),
    ],
)
def test_real_bf16_needs_its_units(make_plan: MakePlan, precision: Precision, capability: float, fix: str | None):
    finding = found(make_plan(precision=precision), machine(gpu(compute_capability=capability)), "cards.capability")
    assert (finding and finding.fix) == fix


def test_a_card_that_torch_was_not_built_for(make_plan: MakePlan):
    here = machine(gpu(compute_capability=7.0, driver="580.95.05"), around=around(torch_cuda="13.0"))
    finding = found(make_plan(precision=Precision.fp16), here, "software.capability")
    assert finding is not None
    assert "compute capability 7.0; CUDA 13.0, that PyTorch is built with, needs 7.5" in finding.message


def test_a_lowered_power_limit_is_told(make_plan: MakePlan):
    # a 3060 laptop runs at 40 to 45 W of 80 (open-gpu-kernel-modules#483); a desktop card after nvidia-smi -pl
    slow = machine(gpu(power_limit_watts=270.0, default_power_limit_watts=450.0))
    finding = found(make_plan(), slow, "cards.power")
    assert finding is not None
    assert "may draw 270 W of its usual 450" in finding.message
    assert (
        found(make_plan(), machine(gpu(power_limit_watts=430.0, default_power_limit_watts=450.0)), "cards.power")
        is None
    )


def test_heat_is_told_before_the_run(make_plan: MakePlan):
    throttled = machine(gpu(slowdowns=("heat",), temperature_celsius=89.0))
    finding = found(make_plan(), throttled, "cards.throttled")
    assert finding is not None
    assert "slowed down by heat at 89 C" in finding.message
    assert found(make_plan(), machine(gpu(temperature_celsius=85.0)), "cards.hot") is not None
    assert found(make_plan(), machine(gpu(temperature_celsius=60.0)), "cards.hot") is None


def test_a_laptop_card_is_no_desktop_card(make_plan: MakePlan):
    name = "NVIDIA GeForce RTX 4070 Laptop GPU"
    declared = make_plan()
    assert found(declared, machine(gpu(name=name, gib=7.6)), "cards.declared") is not None
    detected = replace(declared, hw=replace(declared.hw, detected=True))
    finding = found(detected, machine(gpu(name=name, power_limit_watts=95.0)), "cards.laptop")
    assert finding is not None
    assert "95 W here" in finding.message


@pytest.mark.parametrize(
    ("driver", "environment", "is_said"),
    [("525.60.13", {}, True), ("525.60.13", {"NCCL_P2P_DISABLE": "1"}, False), ("525.105.17", {}, False)],
)
def test_old_drivers_let_4090s_hang(make_plan: MakePlan, driver: str, environment: dict[str, str], is_said: bool):
    here = machine(gpu(0, driver=driver), gpu(1, driver=driver), around=around(environment=environment))
    finding = found(make_plan(n_gpus=2), here, "cards.p2p_driver")
    assert (finding is not None) is is_said
    if finding is not None:
        assert finding.fix == "a driver from 525.105 on, or NCCL_P2P_DISABLE=1"


def test_links_that_the_bill_counts_on_must_be_there(make_plan: MakePlan):
    name = "NVIDIA A100-SXM4-80GB"
    plan = make_plan(card="a100_80gb", n_gpus=2)
    pair = [gpu(i, name=name, gib=79.2, n_nvlinks=n, peers=(False,)) for i, n in ((0, 12), (1, 0))]
    link, peer = (found(plan, machine(*pair), f"cards.{what}") for what in ("nvlink", "p2p"))
    assert link is not None
    assert "GPU 1 has no active NVLink" in link.message
    assert peer is not None
    assert peer.severity is Severity.warning
    assert found(make_plan(n_gpus=2), machine(gpu(0, peers=(False,)), gpu(1, peers=(False,))), "cards.p2p") is None


def test_ecc_that_is_switched_off(make_plan: MakePlan):
    plan = make_plan(card="a100_80gb")
    off = gpu(name="NVIDIA A100-SXM4-80GB", gib=79.2, ecc=False)
    assert found(plan, machine(off), "cards.ecc_off") is not None
    assert found(plan, machine(replace(off, ecc=True)), "cards.ecc_off") is None


def test_shared_memory_of_a_container(make_plan: MakePlan):
    # docker's 64 MB; NCCL wants 9.6 MB a channel; --shm-size=1g cures it (nccl#342)
    pair, small = (gpu(0), gpu(1)), around(shm_bytes=64 * MIB)
    finding = found(make_plan(n_gpus=2), machine(*pair, around=small), "host.shm")
    assert finding is not None
    assert "/dev/shm has 64 MiB" in finding.message
    assert "--shm-size=1g" in finding.fix
    assert found(make_plan(n_gpus=2), machine(*pair, around=around(shm_bytes=GIB)), "host.shm") is None
    assert found(make_plan(), machine(gpu(), around=small), "host.shm") is None  # one rank talks to nobody


def test_address_space_that_pytorch_does_not_fit_into(make_plan: MakePlan):
    on_cpu = make_plan(model="tiny", card="cpu", sequence_length=32)
    finding = found(on_cpu, machine(around=around(address_space_bytes=500 * MIB)), "host.address_space")
    assert finding is not None
    assert (finding.severity, finding.exit_code) == (Severity.error, 4)
    assert finding.message.startswith("a process may map 500 MiB (ulimit -v), PyTorch and the run map ")
    assert found(on_cpu, machine(around=around(address_space_bytes=4 * GIB)), "host.address_space") is None
    on_card = found(make_plan(), machine(gpu(), around=around(address_space_bytes=4 * GIB)), "host.address_space")
    assert on_card is not None
    assert on_card.severity is Severity.warning  # how much a driver maps is its own affair


def test_open_files(make_plan: MakePlan):
    cards = [gpu(i) for i in range(8)]
    finding = found(make_plan(n_gpus=8), machine(*cards, around=around(n_open_files=256)), "host.files")
    assert finding is not None
    assert finding.message == "a process may open 256 files, 8 ranks take up to 768"
    assert found(make_plan(n_gpus=8), machine(*cards, around=around(n_open_files=1024)), "host.files") is None


def test_a_forced_port_that_is_taken(make_plan: MakePlan):
    busy = around(environment={"MASTER_PORT": "29500"}, port_is_free=False)
    finding = found(make_plan(), machine(gpu(), around=busy), "launch.port")
    assert finding is not None
    assert finding.message == "MASTER_PORT=29500 is taken by another run or a process left over"
    assert found(make_plan(), machine(gpu(), around=around(port_is_free=False)), "launch.port") is None


def test_the_torchrun_of_several_nodes_takes_a_free_port(make_plan: MakePlan):
    plan = make_plan(n_nodes=2, command="python launch.py model=gpt2_124m hw=2x1x4090")
    finding = found(plan, machine(gpu(), around=around(port_is_free=False)), "launch.nodes")
    assert finding is not None
    assert "--rdzv-endpoint=box:29501 launch.py model=gpt2_124m" in finding.fix


@pytest.mark.parametrize(
    ("interfaces", "environment", "said"),
    [
        (("eth0", "ib0"), {}, "several networks are up (eth0, ib0)"),
        (("eth0", "ib0"), {"NCCL_SOCKET_IFNAME": "ib"}, None),
        (("eth0",), {"NCCL_SOCKET_IFNAME": "ens5"}, "NCCL_SOCKET_IFNAME=ens5 is no network that is up here (eth0)"),
        (("eth0",), {}, None),
    ],
)
def test_the_network_between_nodes(
    make_plan: MakePlan, interfaces: tuple[str, ...], environment: dict, said: str | None
):
    here = machine(gpu(), around=around(interfaces=interfaces, environment=environment))
    finding = found(make_plan(n_nodes=2), here, "network.interface")
    assert (finding is None) == (said is None)
    assert said is None or said in finding.message  # type: ignore[union-attr]
    assert found(make_plan(), here, "network.interface") is None


def test_nodes_without_infiniband_are_told_the_variable(make_plan: MakePlan):
    here = machine(gpu(), around=around(has_infiniband=False))
    finding = found(make_plan(n_nodes=2), here, "network.infiniband")
    assert finding is not None
    assert finding.fix.startswith("NCCL_IB_DISABLE=1")


def test_a_slow_disk_matters_when_the_data_does_not_fit_in_memory(make_plan: MakePlan):
    # 9.0B tokens of 2 bytes = 16.8 GiB; a spinning disk finds some 100 sequences a second
    plan = make_plan(micro_batch_size=12, compile=True)
    plan = replace(plan, data=replace(plan.data, n_train_tokens=9_000_000_000))
    little = {"memory_available_bytes": 12 * GIB}
    finding = found(plan, machine(gpu(), around=around(disk="hdd"), **little), "host.disk_speed")
    assert finding is not None
    assert "from a spinning disk that answers about 100, and 16.8 GiB do not fit in memory" in finding.message
    assert found(plan, machine(gpu(), around=around(disk="hdd")), "host.disk_speed") is None
    assert found(plan, machine(gpu(), around=around(disk="ssd"), **little), "host.disk_speed") is None
