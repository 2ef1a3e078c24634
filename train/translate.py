"""Translate sentences, or a file with one sentence on each line, with a trained model.

python -m train.translate --workdir=runs/dates "fr de lundi 2 mars 2020"
python -m train.translate --workdir=runs/recurrent "en fr Monday, March 2, 2020" --alignment=alignment.png
python -m train.translate --workdir=runs/dates --input=sentences.txt --output=translations.txt --beams=4
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from attention.errors import UsageError
from train import cli
from train.generation.sampling import Sampling
from train.generation.search import Search


@cli.program(
    __doc__,
    cli.flag("text", nargs="*", help="sentences to translate"),
    cli.flag("--workdir", type=Path, required=True, help="the run's folder"),
    cli.flag("--input", type=Path, help="a file with one sentence on each line, in place of sentences"),
    cli.flag("--output", type=cli.new_file, help="the file for the translations, one on each line"),
    cli.flag("--alignment", type=cli.new_file, help="the file for a picture of what the first translation attends to"),
    cli.flag("--beams", type=int, default=0, help="number of beams; 1 is greedy search; default the run's"),
    cli.flag("--length-penalty", type=float, help="length penalty of beam search; default the run's"),
    cli.flag("--temperature", type=float, default=0.0, help="temperature; 0 takes the most probable token"),
    *cli.WRITING,
    verbatim=True,
)
def main(flags: argparse.Namespace) -> int:
    """Translates sentences or a file; returns 1 where some lines were too long."""
    from train.decode import alignment, translator  # only here, so that --help answers at once
    from train.mesh import compilation

    compilation.keep_programs()
    if bool(flags.text) == bool(flags.input) or bool(flags.input) != bool(flags.output):
        raise UsageError("Give sentences to translate, or --input=FILE and --output=FILE.")
    if flags.input and flags.alignment:
        raise UsageError("--alignment draws one sentence; give it in place of --input.")
    model = translator.Translator.load(flags.workdir, flags.step, flags.replica)
    configured = Search.configured(model.config.data)
    search = dataclasses.replace(
        configured,
        beams=flags.beams or configured.beams,
        length_penalty=configured.length_penalty if flags.length_penalty is None else flags.length_penalty,
        sampling=Sampling(flags.temperature),
    )
    too_long = f"more than the {model.config.data.source_length} tokens that the model was trained for"
    if flags.input:
        left_out = translator.translate_file(model, flags.input, flags.output, search, flags.seed)
        if left_out:
            numbers = ", ".join(map(str, left_out[:10])) + (", ..." if len(left_out) > 10 else "")
            print(f"Not translated, since they have {too_long}: {len(left_out)} lines ({numbers}).", file=sys.stderr)
        return int(bool(left_out))
    for text in flags.text:
        if model.encode(text) is None:
            raise UsageError(f"{text[:40]!r} has {too_long}; shorten it.")
    translations = list(model.tokens(flags.text, search, flags.seed))
    print("\n".join(model.target.decode(ids) for ids in translations))
    if flags.alignment:
        alignment.draw(model.align(flags.text[0], translations[0]), flags.alignment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
