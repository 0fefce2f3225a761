"""Text to token files, once and before training.

    python scripts/prepare_data.py shakespeare                    1 MB, bytes
    python scripts/prepare_data.py openwebtext --dir data         9B GPT-2 tokens, 18 GB; hours, resumable
    python scripts/prepare_data.py fineweb_edu --shards 2         the first 2 of 14 shards of the 10B-token sample
    python scripts/prepare_data.py ~/my_novel.txt                 any file or folder of yours: text, .jsonl, .parquet
    python scripts/prepare_data.py text --path docs.jsonl --field body --tokenizer llama/tokenizer.json
    python scripts/prepare_data.py hf --path roneneldan/TinyStories --split train     Hugging Face's library
    python scripts/prepare_data.py stdlib                         what `python launch.py` prepares by itself

A folder DIR/NAME appears with train.bin, val.bin and manifest.json when it is complete, and not before. Whatever is
interrupted goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from conf.choices import DataKind, Tokenizer
from preflight.dataset import DEFAULT_VAL_FRACTION, Manifest, prepared_name, read_manifest
from preflight.errors import ExitCode, PreflightError
from preflight.units import format_count
from trainers import hub_corpus
from trainers.corpus import Corpus, DatasetCorpus, dataset_corpus, stdlib_corpus, text_corpus
from trainers.download import get_file
from trainers.encoders import encoder
from trainers.prepare import prepare

HF = "hf"  # a dataset of Hugging Face's library
TEXT = DataKind.text.name
SAVED_DATASET = ("dataset_info.json", "dataset_dict.json")  # what save_to_disk leaves beside the tables
OPTION = re.compile(r"\bdata\.(path|field|dir|tokenizer)=")  # is called --path, ... here
SHAKESPEARE_BASE_URL = "https://raw.githubusercontent.com"
SHAKESPEARE_PATH = "karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
HUB_VAL_FRACTION = (
    0.0005  # of the documents: a tenth of ten billion tokens would be a waste (nanoGPT holds out as much)
)


def main(arguments: list[str] | None = None) -> int:
    """0: prepared. 2: not, with the cause and the cure in one message."""
    options = parse(arguments)
    try:
        manifest = prepare_named(options)
    except PreflightError as error:
        print(OPTION.sub(r"--\1 ", str(error)), file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    print(
        f"{folder_of(options)}: {format_count(manifest.n_train_tokens)} training and "
        f"{format_count(manifest.n_val_tokens)} held-out tokens ({manifest.tokenizer.name}), from {manifest.source}"
    )
    if options.name in (HF, TEXT):
        print(shlex.join(["python", "launch.py", *overrides_for(options, manifest)]) + " ...")
    return 0


def overrides_for(options: argparse.Namespace, manifest: Manifest) -> list[str]:
    """How a run reads what was prepared; a model that suits it is the user's choice."""
    if options.name == HF:
        return ["data=bin", f"data.path={folder_of(options)}", f"model.vocab_size={manifest.vocab_size}"]
    given = {
        "data.field": (options.field, "text"),
        "data.tokenizer": (options.tokenizer_path, None),
        "data.dir": (options.dir, Path("data")),
        "data.val_fraction": (options.val_fraction, DEFAULT_VAL_FRACTION),
    }
    rest = [f"{name}={value}" for name, (value, default) in given.items() if value != default]
    vocabulary = [f"model.vocab_size={manifest.vocab_size}"] if options.tokenizer_path else []
    return ["data=text", f"data.path={options.path}", *rest, *vocabulary]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, with defaults that depend on the name."""
    names = [kind.name for kind in DataKind if kind not in (DataKind.auto, DataKind.bin)]
    parser = argparse.ArgumentParser(
        prog="python scripts/prepare_data.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help=f"{', '.join([*names, HF])}, or a file or folder of yours")
    parser.add_argument("--path", type=Path, help="text: the file or folder; hf: the dataset's name or folder")
    parser.add_argument("--field", default="text", help="text, hf: where the text of a document stands")
    parser.add_argument("--split", default="train", help="hf: which part of the dataset")
    parser.add_argument("--config", help="hf: which of the dataset's configurations")
    parser.add_argument("--dir", type=Path, default=Path("data"), help="where prepared data lie (data.dir)")
    parser.add_argument("--tokenizer", help="byte, gpt2, or a tokenizer.json (openwebtext, fineweb_edu: gpt2)")
    parser.add_argument("--val-fraction", type=float, help="of the text, held out")
    parser.add_argument("--shards", type=int, help="openwebtext, fineweb_edu: only the first so many")
    parser.add_argument("--base-url", help="a mirror of the site that is downloaded from")
    options = parser.parse_args(arguments)
    _settle_name(parser, options, [*names, HF])
    _settle_tokenizer(parser, options)
    if (options.name in (HF, TEXT)) is not (options.path is not None):
        parser.error("--path belongs to text and hf, which need it")
    if options.val_fraction is None:
        options.val_fraction = HUB_VAL_FRACTION if options.name in hub_corpus.CORPORA else DEFAULT_VAL_FRACTION
    if not 0 < options.val_fraction < 1:
        parser.error("--val-fraction is between 0 and 1")
    return options


def _settle_name(parser: argparse.ArgumentParser, options: argparse.Namespace, names: list[str]) -> None:
    """What lies on the disk needs no kind: a folder of the library's, or text."""
    if options.name in names:
        return
    if options.name is not None and options.path is not None:
        parser.error(f"{options.name} is none of {', '.join(names)}")
    path = options.path if options.name is None else Path(options.name)
    if path is None or not path.expanduser().exists():
        missing = "a kind, or a file or folder of yours, is needed" if path is None else f"{path} is not there"
        hub = "" if path is None else f"; a dataset on the hub is hf --path {path}"
        parser.error(f"{missing}; kinds are {', '.join(names)}{hub}")
    is_saved = any((path.expanduser() / name).is_file() for name in SAVED_DATASET)
    options.name, options.path = HF if is_saved else TEXT, path


def _settle_tokenizer(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """A name, or a file beside `other`."""
    is_hub, given = options.name in hub_corpus.CORPORA, options.tokenizer
    options.tokenizer_path = None
    if given is not None and given not in ("byte", "gpt2"):
        options.tokenizer_path = Path(os.path.abspath(os.path.expanduser(given)))
        if not options.tokenizer_path.is_file():
            parser.error(f"--tokenizer {given}: byte, gpt2, or a tokenizer.json that is there")
    if is_hub and given not in (None, "gpt2"):
        parser.error(f"{options.name} is prepared with --tokenizer gpt2")
    options.tokenizer = (
        Tokenizer.other if options.tokenizer_path else Tokenizer[given or ("gpt2" if is_hub else "byte")]
    )


def prepare_named(options: argparse.Namespace) -> Manifest:
    """Whatever is prepared already is left alone."""
    folder = folder_of(options)
    existing = read_manifest(folder)
    if existing is not None:
        return existing
    if options.name in hub_corpus.CORPORA:
        return hub_corpus.prepare_hub_corpus(
            hub_corpus.CORPORA[options.name],
            folder,
            base_url=options.base_url or hub_corpus.BASE_URL,
            val_fraction=options.val_fraction,
            n_shards=options.shards,
            say=say,
        )
    words = encoder(options.tokenizer, options.tokenizer_path)
    return prepare(local_corpus(options), folder, words, val_fraction=options.val_fraction, say=say)


def local_corpus(options: argparse.Namespace) -> Corpus | DatasetCorpus:
    """Text that is here, or is after one small download."""
    if options.name == "stdlib":
        return stdlib_corpus()
    if options.name == TEXT:
        path = Path(os.path.abspath(options.path.expanduser()))
        return text_corpus(folder_of(options).name, path, options.field)
    if options.name == HF:
        source = str(options.path.expanduser())
        return dataset_corpus(folder_of(options).name, source, options.config, options.split, options.field)
    url = f"{options.base_url or SHAKESPEARE_BASE_URL}/{SHAKESPEARE_PATH}"
    path = get_file(url, options.dir / "downloads" / "tinyshakespeare.txt", say)
    return Corpus(name="shakespeare", source=url, paths=(path,))


def folder_of(options: argparse.Namespace) -> Path:
    """Where `launch.py` will look."""
    root: Path = options.dir
    path = Path(os.path.abspath(options.path.expanduser())) if options.name == TEXT else None
    kind = DataKind.text if options.name == HF else DataKind[options.name]
    name = prepared_name(
        kind, options.tokenizer, options.val_fraction, path, options.field, tokenizer_path=options.tokenizer_path
    )
    if options.name == HF:
        words = [HF, str(options.path), options.config or "", options.split]
        name = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", word) for word in words if word) + name.removeprefix("text")
    return root / name


def say(line: str) -> None:
    """Progress goes to stderr."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
