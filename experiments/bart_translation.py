"""Translation by BART, the second of two stages (Lewis et al. 2020, sections 3.4 and 5.4): all parameters learn.

    python -m experiments.bart_translation --warm-start=runs/bart_translation_source    # a TPU pod
    python -m experiments.bart_translation --scale=laptop --warm-start=runs/bart_translation_source-laptop \\
        --data.path=task:columns-de-en:train.tsv
    python -m experiments.bart_translation --scale=test --data.path=task:columns-de-en:train.tsv
    python -m plm_jax text-to-text runs/bart_translation task:columns-ro-en:test.tsv --beams=5

The model is that of experiments.bart_translation_source, which is the first stage, and so are the data and their
deviations. `For a small number of iterations', says the paper; number and rate are those of this recipe. Its beams are
5, with a length penalty of 1. On a pod every worker has to run the command, with --hosts.distributed=True (see
scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import bart
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """BART-large with a source encoder. python -m experiments.bart_translation [--scale=laptop]"""
  paper = Experiment(
      'bart_translation', family='bart', model=bart.translator(bart.large('bfloat16')),
      objective=TextToText(decoder_length=256, specials=2, smoothing=0.1),
      data=DataConfig(path=('task:columns-ro-en:tfds:wmt16_translate/ro-en',), prepare=TextConfig(kind='byte-bpe'),
                      assembly='examples'),
      optim=OptimConfig(peak=3e-5, warmup=500, schedule='linear', b2=0.98, eps=1e-8, bias_correction=True),
      train=TrainConfig(phases=(Phase(10_000, 256, 96),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
