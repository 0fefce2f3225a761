import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from preflight.errors import ConfigError

# what is typed -> path of the problem, words of the message, the fix
FAULTS = [
    ("model=gpt2_125m", "model", "no such choice; there are gpt2_10m, gpt2_124m", "model=gpt2_124m"),
    ("model=gpt2", "model", "no such choice", "model=gpt2_124m"),
    ("model=GPT2-XL", "model", "no such choice", "model=gpt2_1558m"),
    ("data=/tmp/x", "data", "no such choice", "data=text data.path=/tmp/x"),
    ("gpus=4", "gpus", "did you mean hw", "hw.n_gpus_per_node=4"),
    ("gpu=4x4090", "gpu", "did you mean hw", "hw=4x4090"),
    ("8xh100", "", "an override is KEY=VALUE", "hw=8xh100"),
    ("help", "", "an override is KEY=VALUE", "--help"),
    ("train", "", "an override is KEY=VALUE", "leave out train: training is what happens"),
    ("trainer.precision=bfloat16", "trainer.precision", "one of auto", "trainer.precision=bf16"),
    ("model={n_layer:3}", "model", "takes a name", "model=gpt2_10m"),
    ("trainer=5", "trainer", "there are pretrain", "trainer=pretrain"),
    ("model=null", "model", "no such choice", "model=gpt2_10m"),
    ("trackng=none", "trackng", "did you mean tracking?", "tracking=none"),
    ("trainer.n_step=4", "trainer.n_step", "did you mean trainer.n_steps?", "trainer.n_steps=4"),
    ("trainer.lr=1e-3", "trainer.lr", "did you mean trainer.learning_rate?", "trainer.learning_rate=1e-3"),
    ("max_hours=3", "max_hours", "did you mean budget.max_hours?", "budget.max_hours=3"),
    ("batch_size=8", "batch_size", "did you mean trainer.micro_batch_size?", "trainer.micro_batch_size=8"),
    ("trainer.foo=4", "trainer.foo", "trainer has micro_batch_size", "leave out trainer.foo=; --help"),
    ("qqq=4", "qqq", "no such option", "leave out qqq=; --help lists the options"),
    ("hydra.run.dir=x", "hydra.run.dir", "Hydra's own settings are not used", "runs_dir=runs"),
    ("hydra/launcher=slurm", "hydra/launcher", "Hydra's own settings are not used", "runs_dir=runs"),
    ("trainer.n_steps=10k", "trainer.n_steps", "a whole number, or null", "trainer.n_steps=10000"),
    ("trainer.total_tokens=2.5B", "trainer.total_tokens", "a whole number", "trainer.total_tokens=2500000000"),
    ("trainer.total_tokens=491,520", "trainer.total_tokens", "needs -m", "trainer.total_tokens=491520"),
    ("trainer.n_steps=10.5", "trainer.n_steps", "a whole number", "trainer.n_steps=10"),
    ("trainer.n_steps=", "trainer.n_steps", "a whole number", "trainer.n_steps=null"),
    ("trainer.learning_rate=fast", "trainer.learning_rate", "a number, or null", "trainer.learning_rate=null"),
    ("trainer.beta1=fast", "trainer.beta1", "a number", "trainer.beta1=0.9"),
    ("budget.max_memory_fraction=95%", "budget.max_memory_fraction", "a number", "budget.max_memory_fraction=0.95"),
    ("seed=null", "seed", "takes a whole number", "seed=1337"),
    ("dry_run=ture", "dry_run", "true or false", "dry_run=true"),
    ("trainer.precision=fp8", "trainer.precision", "one of auto, fp32, tf32, bf16, fp16", "trainer.precision=auto"),
    ("trainer.precision=BF16", "trainer.precision", "one of auto", "trainer.precision=bf16"),
    ("lowering.keep=batch", "lowering.keep", "a list such as [a,b]", "'lowering.keep=[batch]'"),
    ("lowering.keep=[batch", "lowering.keep", "cannot be read", "'lowering.keep=[batch]'"),
    ("model.recipe=5", "model.recipe", "is a group of options: sequence_length", "leave out model.recipe="),
    ("tracking.notes=a,b", "tracking.notes", "one text with a comma needs quotes", "'tracking.notes=\"a,b\"'"),
    ("tracking.notes=a=b", "tracking.notes", "need quotes that survive the shell", "'tracking.notes=\"a=b\"'"),
    ("tracking.notes=f(x)", "tracking.notes", "need quotes that survive the shell", "'tracking.notes=\"f(x)\"'"),
    ("runs_dir=/tmp/(x)", "runs_dir", "need quotes that survive the shell", "'runs_dir=\"/tmp/(x)\"'"),
    ("hw==4x4090", "hw", "cannot be read", "hw=4x4090"),
    ("hw=", "hw", "no such choice", "hw=auto"),
    ("model=tiny,gpt2_10m", "model", "several values are a grid, which needs -m", "-m model=tiny,gpt2_10m"),
    ("seed=interval(1,2)", "seed", "an interval has no list of values", "seed=A,B with -m"),
    ("+trainer.n_steps=4", "", "nothing can be added with +", "trainer.n_steps=4"),
    ("++trainer.n_steps=4", "", "nothing can be added with +", "trainer.n_steps=4"),
    ("+experiment=llmc_124m", "", "nothing can be added with +", "experiment=llmc_124m"),
    ("+trainer.lr=4", "trainer.lr", "did you mean", "trainer.learning_rate=4"),
    ("~trainer.n_steps", "trainer.n_steps", "cannot be removed", "leave out ~trainer.n_steps"),
    ("dry_run", "", "an override is KEY=VALUE", "dry_run=true"),
    ("gpt2_124m", "", "an override is KEY=VALUE", "model=gpt2_124m"),
    ("trainer.n_steps", "", "an override is KEY=VALUE", "trainer.n_steps=VALUE"),
    ("--dry-run", "", "without dashes", "dry_run=true"),
    ("--model=tiny", "", "without dashes", "model=tiny"),
    ("--lr=1e-3", "", "without dashes", "trainer.learning_rate=1e-3"),
    ("-v", "", "without dashes", "leave out v; --help lists the options"),
    ("seed= 5", "seed", "spaces round the =", "seed=5"),
    ("=5", "", "nothing stands left of the =", "no spaces round the ="),
]  # fmt: skip


def problems_of(*argv: str) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        compose(argv)
    return [(problem.path, problem.message, problem.fix) for problem in caught.value.problems]


@pytest.mark.parametrize(("typed", "path", "words", "fix"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_override_fault_is_explained_with_its_cure(typed, path, words, fix):
    ((told_path, message, told_fix),) = problems_of(typed)
    assert told_path == path
    assert words in message
    assert told_fix == fix or (fix.startswith("leave out") and told_fix.startswith(fix))


@pytest.mark.parametrize(
    "fix", sorted({fault[3] for fault in FAULTS if re.match(r"^'?(-m )?[\w.]+=(?!VALUE|A,B)", fault[3])})
)
def test_override_fix_works_as_typed_in_a_shell(fix):
    compose(shlex.split(fix))


def test_override_faults_are_all_told_at_once():
    typed = [fault[0] for fault in FAULTS if fault[1] not in ("model", "hw", "seed", "trainer.n_steps")]
    told = problems_of(*typed)
    assert {fault[1] for fault in FAULTS if fault[1] not in ("model", "hw", "seed", "trainer.n_steps")} <= {
        path for path, _, _ in told
    }


def test_override_given_twice_is_told():
    ((path, message, fix),) = problems_of("seed=1", "seed=2")
    assert (path, fix) == ("seed", "seed=2")
    assert "given 2 times (1, 2)" in message


def test_option_and_its_value_in_two_words_are_one_mistake():
    ((_, message, fix),) = problems_of("--model", "gpt2_124m")
    assert message.startswith("--model=gpt2_124m")
    assert fix == "model=gpt2_124m"


@pytest.mark.parametrize(
    "text",
    ["a,b", "a=b", "it's", 'say "hi"', "50% (half)", "[x", "{a: b", "a#b", "back\\slash", "back\\", 'q\\"', "ä ö"],
)
def test_quoting_fix_passes_the_text_literally(text):
    try:
        config = compose([f"tracking.notes={text}"]).config
    except ConfigError as error:
        (problem,) = error.problems
        config = compose(shlex.split(problem.fix)).config
    assert config is not None
    assert config.tracking.notes == text


@pytest.mark.parametrize("text", ["~/runs", "a&b", "half-done!", "#1", "ümläut", "C:/x", "a;b"])
def test_plain_text_needs_no_quotes(text):
    config = compose([f"tracking.notes={text}"]).config
    assert config is not None
    assert config.tracking.notes == text
    assert [row.config.tracking.notes for row in compose(["-m", f"tracking.notes={text}", "seed=1,2"]).grid] == [
        text
    ] * 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="modelhwtrainer.=+~-_,[]{}()'\"\\ 0123456789$:@/#", max_size=25), max_size=3))
def test_no_command_line_ends_in_a_traceback(argv):
    problems = []
    try:
        compose(argv)
    except ConfigError as error:
        problems = [*error.problems]
        problems[0]  # there is one
    assert all(problem.fix for problem in problems)
