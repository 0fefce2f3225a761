import io

import pytest

from scripts.explain_oom import main

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.14 GiB (GPU 0; 15.78 GiB total capacity; "
    "10.16 GiB already allocated; 4.45 GiB free; 10.20 GiB reserved in total by PyTorch)"
)


def test_log_and_overrides_give_tensor_and_fix(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{MESSAGE}\n")
    overrides = ["model=gpt2_124m", "hw=t4", "trainer.micro_batch_size=32", "trainer.precision=fp32"]
    assert main([str(log), *overrides]) == 0
    shown = capsys.readouterr().out
    assert "the logits or their gradient in fp32, B x T x V = 32 x 1,024 x 50,304 = 6.1 GiB" in shown
    assert "fix: trainer.micro_batch_size=" in shown


def test_message_alone_says_what_it_can(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(MESSAGE))
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "real need: 10.2 GiB of tensors were alive on a device of 15.8 GiB" in shown
    assert "give the run's folder or its overrides as well" in shown


def test_who_waits_for_the_keyboard_says_so(monkeypatch, capsys):
    terminal = io.StringIO(MESSAGE)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert main([]) == 0
    assert "reading from the keyboard" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.log"], "nowhere.log: cannot be read: No such file"),
        (["-", "model=nope"], "model=nope"),
        (["-", "--run", "nowhere"], "nowhere"),
        (["-", "--run", "latest", "--runs-dir", "nowhere"], "no run with a checkpoint in"),
        (["-"], "no out-of-memory message"),
    ],
)
def test_what_is_wrong_is_said(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("all is well"))
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
