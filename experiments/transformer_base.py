"""The Transformer, base (Vaswani et al. 2017): 65 million parameters, for translation.

    python -m experiments.transformer_base --data.path=task:columns-en-de:train.tsv.gz    # a TPU pod
    python -m experiments.transformer_base --scale=laptop --data.path=task:columns-de-en:train.tsv
    python -m experiments.transformer_base --scale=test --data.path=task:columns-de-en:train.tsv
    python -m plm_jax text-to-text runs/transformer_base task:columns-en-de:test.tsv --beams=4 --length-penalty=0.6

6 + 6 layers of 512 on WMT 2014, English to German, by default as TFDS has it; columns-A-B is any other pair of texts,
in .tsv or .jsonl. 100,000 steps of about 25,000 tokens on each side (section 5.1): 96 rows of 256, which hold as many
sentences as fit; labels are smoothed by 0.1. Pieces are a unigram model's, not byte pairs, for which transformers has
no tokenizer without bytes; and the last checkpoints are not averaged. On a pod every worker has to run the command,
with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import transformer
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """The Transformer, base: 6 + 6 layers of 512. python -m experiments.transformer_base [--scale=laptop]"""
  # Section 5.3: a rate of D^-0.5 at most, over the root of the steps.
  optim = OptimConfig(
      peak=(512 * 4000) ** -0.5, warmup=4000, schedule='inverse_sqrt', b2=0.98, eps=1e-9, bias_correction=True,
      weight_decay=0.0, clip=0.0)
  paper = Experiment(
      'transformer_base', family='marian', model=transformer.base('bfloat16'),
      objective=TextToText(decoder_length=256, smoothing=0.1),
      data=DataConfig(
          path=('task:columns-en-de:tfds:wmt14_translate/de-en',),
          prepare=TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False),
          assembly='examples'),
      optim=optim,
      train=TrainConfig(phases=(Phase(100_000, 256, 96),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
