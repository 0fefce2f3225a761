import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import Request
from conf.compose import compose as compose_with
from conf.register import Chosen
from conf.schema import Config
from preflight.errors import ConfigError

CHOSEN: Chosen = {}  # as rows of a grid share it; test_compose.py and test_register.py read the files each time


def compose(argv: list[str]) -> Request:
    return compose_with(argv, CHOSEN)


# what is typed -> path of the problem, words of the message, the fix (`instead`: of the word, not added to it)
FAULTS = [
    ("model=gpt2_125m", "model", "no such choice; there are gpt2_10m, gpt2_124m", "model=gpt2_124m"),
    ("model=gpt2", "model", "no such choice", "model=gpt2_124m"),
    ("model=GPT2-XL", "model", "no such choice", "model=gpt2_1558m"),
    ("data=/tmp/x", "data", "no such choice", "data=text data.path=/tmp/x"),
    ("gpus=4", "gpus", "did you mean hw", "hw.n_gpus_per_node=4 instead"),
    ("gpu=4x4090", "gpu", "did you mean hw", "hw=4x4090 instead"),
    ("8xh100", "", "an override is KEY=VALUE", "hw=8xh100 instead"),
    ("help", "", "an override is KEY=VALUE", "--help instead"),
    ("train", "", "an override is KEY=VALUE", "leave out train: training is what happens"),
    ("trainer.precision=bfloat16", "trainer.precision", "one of auto", "trainer.precision=bf16"),
    ("model={n_layer:3}", "model", "takes a name", "model=gpt2_10m"),
    ("trainer=5", "trainer", "there are pretrain", "trainer=pretrain"),
    ("model=null", "model", "no such choice", "model=gpt2_10m"),
    ("budget.max_memory=20", "budget.max_memory", "did you mean", "budget.max_host_memory_gib=20 instead"),
    ("budget.max_mem_fraction=3", "budget.max_mem_fraction", "did you mean", "budget.max_memory_fraction=0.95 instead"),
    ("trackng=none", "trackng", "did you mean tracking?", "tracking=none instead"),
    ("modle=gpt2_125m", "modle", "did you mean model", "model=gpt2_124m instead"),
    ("modl=3", "modl", "did you mean model", "model=gpt2_10m instead"),
    ("steps=10k", "steps", "did you mean trainer.n_steps?", "trainer.n_steps=10000 instead"),
    ("trainer.n_step=4", "trainer.n_step", "did you mean trainer.n_steps?", "trainer.n_steps=4 instead"),
    ("trainer.lr=1e-3", "trainer.lr", "did you mean trainer.learning_rate?", "trainer.learning_rate=1e-3 instead"),
    ("max_hours=3", "max_hours", "did you mean budget.max_hours?", "budget.max_hours=3 instead"),
    ("micro_batch_size=8", "micro_batch_size", "mean trainer.micro_batch", "trainer.micro_batch_size=8 instead"),
    ("batch_size=8", "batch_size", "did you mean trainer.micro_batch_size?", "trainer.micro_batch_size=8 instead"),
    ("trainer.foo=4", "trainer.foo", "trainer has micro_batch_size", "leave out trainer.foo=4; --help"),
    ("qqq=4", "qqq", "no such option", "leave out qqq=4; --help lists the options"),
    ("hydra.run.dir=x", "hydra.run.dir", "Hydra's own settings are not used", "runs_dir=runs instead"),
    ("hydra/launcher=slurm", "hydra/launcher", "Hydra's own settings are not used", "runs_dir=runs instead"),
    ("trainer.n_steps=10k", "trainer.n_steps", "a whole number, or null", "trainer.n_steps=10000"),
    ("trainer.tokens_per_step=0.5M", "trainer.tokens_per_step", "a whole number", "trainer.tokens_per_step=500000"),
    ("trainer.total_tokens=491,520", "trainer.total_tokens", "needs -m", "trainer.total_tokens=491520"),
    ("trainer.n_steps=10.5", "trainer.n_steps", "a whole number", "trainer.n_steps=10"),
    ("trainer.n_steps=", "trainer.n_steps", "a whole number", "trainer.n_steps=null"),
    ("trainer.learning_rate=fast", "trainer.learning_rate", "a number, or null", "trainer.learning_rate=null"),
    ("trainer.learning_rate=6e-4x", "trainer.learning_rate", "a number, or null", "trainer.learning_rate=null"),
    ("trainer.learning_rate=-3x", "trainer.learning_rate", "a number, or null", "trainer.learning_rate=null"),
    ("trainer.learning_rate=0,0006", "trainer.learning_rate", "one number has a point", "trainer.learning_rate=0.0006"),
    ("trainer.weight_decay=0.1.2", "trainer.weight_decay", "takes a number", "trainer.weight_decay=0.1"),
    ("trainer.n_steps=100x", "trainer.n_steps", "a whole number", "trainer.n_steps=null"),
    ("trainer.n_steps=10,20", "trainer.n_steps", "needs -m", "-m trainer.n_steps=10,20"),
    ("trainer.total_tokens=10,5B", "trainer.total_tokens", "has a point", "trainer.total_tokens=10500000000"),
    ("budget.max_hours=1,5", "budget.max_hours", "several values are a grid", "budget.max_hours=1.5"),
    ("budget.max_hours=1h30", "budget.max_hours", "a number", "budget.max_hours=1.5"),
    ("budget.max_cost_usd=1,500", "budget.max_cost_usd", "no commas", "budget.max_cost_usd=1500"),
    ("trainer.beta1=fast", "trainer.beta1", "a number", "trainer.beta1=0.9"),
    ("budget.max_memory_fraction=95%", "budget.max_memory_fraction", "a number", "budget.max_memory_fraction=0.95"),
    ("budget.max_hours=2h", "budget.max_hours", "a number", "budget.max_hours=2"),
    ("budget.max_hours=90min", "budget.max_hours", "a number", "budget.max_hours=1.5"),
    ("budget.max_cost_usd=$5", "budget.max_cost_usd", "a number", "budget.max_cost_usd=5"),
    ("hw.price_usd_per_hour=1.2USD", "hw.price_usd_per_hour", "a number", "hw.price_usd_per_hour=1.2"),
    ("hw.watts=0.4kW", "hw.watts", "a number", "hw.watts=400"),
    ("hw.custom.memory_gib=24GB", "hw.custom.memory_gib", "a number", "hw.custom.memory_gib=24"),
    ("hw=4,4090", "hw", "one machine is written as below", "hw=4x4090"),
    ("hw.card=foo", "hw.card", "nor is one like it", "hw.card=auto"),
    ("hw.card=4095", "hw.card", "the nearest are 4090", "hw.card=4090"),
    ("hw.card=4x4090", "hw.card", "one card is wanted", "hw=4x4090 hw.card=4090"),
    ("budget.max_disk_gib=2TB", "budget.max_disk_gib", "a number", "budget.max_disk_gib=2048"),
    ("report=JSON", "report", "one of text", "report=json"),
    ("seed=null", "seed", "takes a whole number", "seed=1337"),
    ("dry_run=ture", "dry_run", "true or false", "dry_run=true"),
    ("trainer.precision=fp8", "trainer.precision", "one of auto, fp32, tf32, bf16, fp16", "trainer.precision=auto"),
    ("trainer.activation_checkpointing=True", "trainer.activation_checkpointing", "one of none",
     "trainer.activation_checkpointing=full"),
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
    ("trainer.n_steps=10,5M", "trainer.n_steps", "several values are a grid", "-m trainer.n_steps=10,5000000"),
    ("budget.max_hours=1h,2h", "budget.max_hours", "several values are a grid", "-m budget.max_hours=1,2"),
    ("hw=glob(*)", "hw", "no patterns; list the values: hw=1x4090,8xh100", "-m hw=1x4090,8xh100"),
    ("seed=glob(*)", "seed", "no patterns; list the values", "-m seed=A,B"),
    ("seed=interval(1,2)", "seed", "an interval has no list of values", "seed=A,B with -m"),
    ("+trainer.n_steps=4", "", "nothing can be added with +", "trainer.n_steps=4"),
    ("++trainer.n_steps=4", "", "nothing can be added with +", "trainer.n_steps=4"),
    ("+experiment=llmc_124m", "", "nothing can be added with +", "experiment=llmc_124m"),
    ("+trainer.lr=4", "trainer.lr", "did you mean", "trainer.learning_rate=4 instead"),
    ("~trainer.n_steps", "trainer.n_steps", "cannot be removed", "leave out ~trainer.n_steps"),
    ("dry_run", "", "an override is KEY=VALUE", "dry_run=true"),
    ("gpt2_124m", "", "an override is KEY=VALUE", "model=gpt2_124m instead"),
    ("trainer.n_steps", "", "an override is KEY=VALUE", "trainer.n_steps=VALUE"),
    ("--dry-run", "", "without dashes", "dry_run=true"),
    ("--model=tiny", "", "without dashes", "model=tiny"),
    ("--lr=1e-3", "", "without dashes", "trainer.learning_rate=1e-3 instead"),
    ("-v", "", "without dashes", "leave out -v; --help lists the options"),
    ("seed= 5", "seed", "spaces round the =", "seed=5"),
    ("trainer.learning_rate=6e–4", "trainer.learning_rate", "", "trainer.learning_rate=6e-4"),
    ("trainer.learning_rate=6e", "trainer.learning_rate", "a number", "trainer.learning_rate=null"),
    ("trainer.learning_rate=6e,3e", "trainer.learning_rate", "needs -m", "trainer.learning_rate=null"),
    ("trainer.learning_rate=10%", "trainer.learning_rate", "a number", "trainer.learning_rate=null"),
    ("trainer.total_tokens=10BB", "trainer.total_tokens", "a whole number", "trainer.total_tokens=10000000000"),
    ("trainer.total_tokens=10Gb", "trainer.total_tokens", "a whole number", "trainer.total_tokens=10000000000"),
    ("trainer.total_tokens=10 million", "trainer.total_tokens", "a whole number", "trainer.total_tokens=10000000"),
    ("trainer.total_tokens=10M tokens", "trainer.total_tokens", "a whole number", "trainer.total_tokens=10000000"),
    ("trainer.total_tokens=10M steps", "trainer.total_tokens", "a whole number", "trainer.total_tokens=null"),
    ("trainer.total_tokens=1 000 000", "trainer.total_tokens", "a whole number", "trainer.total_tokens=1000000"),
    ("trainer.total_tokens=10kk", "trainer.total_tokens", "a whole number", "trainer.total_tokens=null"),
    ("trainer.sequence_length=2k", "trainer.sequence_length", "a whole number", "trainer.sequence_length=2048"),
    ("model.dropout=10%", "model.dropout", "a number", "model.dropout=0.1"),
    ("model.dropout=150%", "model.dropout", "a number", "model.dropout=0.0"),
    ("budget.max_hours=1,5h", "budget.max_hours", "one number has a point", "budget.max_hours=1.5"),
    ("trainer.compile=flase", "trainer.compile", "true or false", "trainer.compile=false"),
    ("trainer.compile=perhaps", "trainer.compile", "true or false", "trainer.compile=null"),
    ("trainer.attention=quick", "trainer.attention", "one of", "trainer.attention=null"),
    ("--version", "", "without dashes", "leave out --version; --help lists the options"),
    ("+foo=1", "foo", "no such option", "leave out +foo=1; --help lists the options"),
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
    whole_fix = f"{fix} of {typed}" if fix.endswith(" instead") else fix
    assert told_fix == whole_fix or (fix.startswith("leave out") and told_fix.startswith(fix))


SUPERSEDED = ("model", "hw", "seed", "trainer.n_steps", "dry_run")  # by the same key in a later line


def test_override_faults_are_all_told_at_once():
    typed = [fault[0] for fault in FAULTS if fault[1] not in SUPERSEDED]
    told = problems_of(*typed)
    assert {fault[1] for fault in FAULTS if fault[1] not in SUPERSEDED} <= {path for path, _, _ in told}


CURES = [(fault[0], fault[3]) for fault in FAULTS if not re.search("leave out|VALUE|A,B|no spaces", fault[3])]


@pytest.mark.parametrize(("typed", "fix"), CURES, ids=[typed for typed, _ in CURES])
def test_override_fix_works_at_the_end_of_the_command_or_instead_of_the_word(typed, fix):
    is_instead = fix.endswith(" instead")
    compose([*([] if is_instead else [typed]), *shlex.split(fix.removesuffix(" instead"))])


def notes_and_config(*argv: str) -> tuple[tuple[str, ...], Config]:
    request = compose(argv)
    assert request.config is not None
    return request.notes, request.config


@pytest.mark.parametrize(
    ("typed", "path", "fixes"),
    [
        (["hw=4x4090", "hw.card=h100"], "hw.card", ["hw=4xh100", "hw.card=4090"]),
        (["hw.card=4090", "hw=2x8xh100"], "hw.card", ["hw=2x8x4090", "hw.card=h100"]),
        (["hw=auto", "hw.card=4090"], "hw.card", ["hw=4090", "hw.card=auto"]),
        (["data=stdlib", "data.kind=bin"], "data.kind", ["data=bin", "data.kind=stdlib"]),
        (["tracking=none", "tracking.backend=wandb"], "tracking.backend", ["tracking=wandb", "tracking.backend=none"]),
    ],
)
def test_choice_and_option_that_contradict_each_other_are_both_named(typed, path, fixes):
    ((told_path, message, told_fix),) = problems_of(*typed)
    assert told_path == path
    assert "is another one; which of the two is meant?" in message
    assert told_fix == ", or ".join(fixes)
    for fix in fixes:
        compose([*typed, fix])


def test_choice_and_option_that_agree_are_no_fault_and_a_number_given_again_is_told():
    assert notes_and_config("hw=4x4090", "hw.card=RTX 4090", "data=stdlib", "data.kind=stdlib")[0] == ()
    notes, config = notes_and_config("hw=4x4090", "hw.n_gpus_per_node=8")
    assert notes == ("hw=4x4090 and hw.n_gpus_per_node=8: hw.n_gpus_per_node counts",)
    assert config.hw.n_gpus_per_node == 8
    assert notes_and_config("hw=h100", "hw.n_gpus_per_node=8")[0] == ()
    assert notes_and_config("hw=4x4090", "hw.card=custom", "hw.custom.memory_gib=24")[1].hw.n_gpus_per_node == 4


def test_grid_that_may_be_a_decimal_comma_says_what_was_understood():
    request = compose(["-m", "budget.max_hours=1,5", "trainer.n_steps=5,6", "seed=1,2"])
    assert len(request.grid) == 8
    assert request.notes == (
        "budget.max_hours=1,5 is a grid of 2 values; one number has a point: budget.max_hours=1.5",
    )


def test_last_of_two_values_counts_and_a_note_says_so():
    notes, config = notes_and_config("trainer.n_steps=5", "seed=3", "trainer.n_steps=null")
    assert notes == ("trainer.n_steps given 2 times: null counts",)
    assert (config.trainer.n_steps, config.seed) == (None, 3)


def test_last_of_two_choices_counts():
    notes, config = notes_and_config("model=gpt2_10m", "hw=4x4090", "hw=8xh100", "model=tiny", "hw=cpu")
    assert notes == ("model given 2 times: tiny counts", "hw given 3 times: cpu counts")
    assert (config.model.name, config.hw.card) == ("tiny", "cpu")


def test_same_value_twice_needs_no_note():
    assert notes_and_config("model=tiny", "model=tiny")[0] == ()


def test_last_list_of_a_grid_counts():
    request = compose(["-m", "seed=1,2", "hw=1x4090,8xh100", "seed=3"])
    assert request.notes == ("seed given 2 times: 3 counts",)
    assert [row.overrides for row in request.grid] == [("hw=1x4090", "seed=3"), ("hw=8xh100", "seed=3")]


def test_value_that_is_given_again_is_not_judged():
    assert notes_and_config("model=gpt2_125m", "model=gpt2_124m")[1].model.name == "gpt2_124m"


# what is typed -> words of the one message, the fix
PHRASES = [
    (["model", "gpt2_124m"], "an override is KEY=VALUE", "model=gpt2_124m"),
    (["model", "gpt2_125m"], "an override is KEY=VALUE", "model=gpt2_124m"),
    (["dry_run", "true"], "an override is KEY=VALUE", "dry_run=true"),
    (["hw", "4"], "an override is KEY=VALUE", "hw=4x4090"),
    (["tracking.notes=my", "first", "run"], "a text with spaces needs quotes", "'tracking.notes=my first run'"),
    (["tracking.notes=foo,", "bar"], "a text with spaces needs quotes", "'tracking.notes=\"foo, bar\"'"),
    (["lr", "1e-3"], "an override is KEY=VALUE", "trainer.learning_rate=1e-3 instead of lr 1e-3"),
    (["--model", "gpt2_124m"], "without dashes", "model=gpt2_124m"),
    (["--n-gpus", "4"], "without dashes", "hw.n_gpus_per_node=4 instead of --n-gpus 4"),
    (["model", "=", "tiny"], "no spaces round the =", "model=tiny"),
    (["model", "=tiny"], "no spaces round the =", "model=tiny"),
    (["model=", "tiny"], "no spaces round the =", "model=tiny"),
    (["-m", "model=tiny,", "gpt2_10m"], "none within a value", "model=tiny,gpt2_10m"),
    (["lowering.keep=[batch,", "model]"], "none within a value", "'lowering.keep=[batch,model]'"),
    (
        ["model=gpt2_124m,", "hw=4x4090,", "dry_run=true"],
        "no commas between options",
        "model=gpt2_124m hw=4x4090 dry_run=true",
    ),
    (["model=gpt2_124m", ",", "hw=4x4090"], "no commas between options", "model=gpt2_124m hw=4x4090"),
    (["model=gpt2_124m,hw=4x4090"], "no commas between options", "model=gpt2_124m hw=4x4090"),
    (["model=tiny,"], "no commas between options", "model=tiny"),
    (["name=a,", "model=tiny"], "no commas between options", "name=a model=tiny"),
    (
        ["model=gpt2_1558m hw=1x4090"],
        'in Python a string of its own: bill("model=gpt2_1558m", "hw=1x4090")',
        "model=gpt2_1558m hw=1x4090",
    ),
]


@pytest.mark.parametrize(("typed", "words", "fix"), PHRASES, ids=[" ".join(each[0]) for each in PHRASES])
def test_words_of_one_mistake_have_one_message_and_its_fix_works(typed, words, fix):
    ((_, message, told_fix),) = problems_of(*typed)
    assert words in message
    assert told_fix == fix
    cure, _, out = fix.partition(" instead of ")
    compose([*([] if out else typed), *shlex.split(cure)])


def test_options_of_one_string_are_not_lost_when_one_of_them_is_given_again():
    ((_, message, _),) = problems_of("model=gpt2_1558m hw=1x4090", "model=tiny")
    assert message.startswith("model=gpt2_1558m hw=1x4090: ")


def test_switch_takes_no_other_word_with_it():
    assert [fix for _, _, fix in problems_of("dry_run", "8xh100")] == ["dry_run=true", "hw=8xh100 instead of 8xh100"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("10B", 10**10), ("2.5b", 2_500_000_000), ("1e9", 10**9), ("300M", 3 * 10**8), ("1T", 10**12), ("500k", 500_000)],
)
def test_total_tokens_may_be_written_short(text, tokens):
    config = compose([f"trainer.total_tokens={text}"]).config
    assert config is not None
    assert config.trainer.total_tokens == tokens
    rows = compose(["-m", f"trainer.total_tokens=1000,{text}"]).grid
    assert [row.config.trainer.total_tokens for row in rows] == [1000, tokens]


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
