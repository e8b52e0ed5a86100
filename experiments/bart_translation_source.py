"""Translation by BART, the first of two stages (Lewis et al. 2020, sections 3.4 and 5.4): a source encoder learns.

    python -m experiments.bart_translation_source --warm-start=BART                      # a TPU pod; then the second
    python -m experiments.bart_translation --warm-start=runs/bart_translation_source     # stage, from what it made
    python -m experiments.bart_translation_source --scale=laptop --warm-start=runs/bart_base-laptop \\
        --data.path=task:columns-de-en:train.tsv
    python -m experiments.bart_translation_source --scale=test --data.path=task:columns-de-en:train.tsv

BART is bart-large, the folder of a run or of a checkpoint of transformers; its tokenizer comes with it. A Transformer
encoder of six layers, begun afresh, reads the foreign text, and its output takes the place of the token vectors of
BART's encoder. This stage trains it, BART's positions, and the projections into self-attention of the first layer of
BART's encoder (--optim.only); all else stays as it is.

Romanian to English, WMT 2016, as TFDS has it; the paper added the back-translations of Sennrich et al. (2016): give
them as another --data.path, task:columns-ro-en:FILE. The source encoder has a token table of its own, over the same
pieces as BART's; the paper allows pieces of its own too. It tells neither rates nor numbers of updates: they are those
of the original Transformer here, and label smoothing that of its other texts (section 5.3). On a pod every worker has
to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import bart
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """A source encoder for BART-large. python -m experiments.bart_translation_source [--scale=laptop]"""
  paper = Experiment(
      'bart_translation_source', family='bart', model=bart.translator(bart.large('bfloat16')),
      objective=TextToText(decoder_length=256, specials=2, smoothing=0.1),
      data=DataConfig(path=('task:columns-ro-en:tfds:wmt16_translate/ro-en',), prepare=TextConfig(kind='byte-bpe'),
                      assembly='examples'),
      optim=OptimConfig(peak=5e-4, warmup=4000, schedule='inverse_sqrt', b2=0.98, eps=1e-8, bias_correction=True,
                        weight_decay=0.0, only=bart.SOURCE_STAGE),
      train=TrainConfig(phases=(Phase(100_000, 256, 96),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
