"""T5 small on tasks as text to text: GLUE (Raffel et al. 2020, section 3.1.2).

    python -m experiments.t5_small_tasks --warm-start=gs://BUCKET/t5_small    # a TPU host
    python -m experiments.t5_small_tasks --warm-start=T5 --data.path task:squad:train-v1.1.json \\
        task:summarize:train.jsonl task:translate-en-de:train.tsv             # tasks of your own
    python -m plm_jax text-to-text runs/t5_small_tasks task:sst2:tfds:glue/sst2:validation

2^18 steps of 128 rows of 512 tokens, which hold as many examples as fit, with a constant rate of 0.001. Tasks are read
in proportion to their numbers of examples; --data.cap and --data.temperature change that (section 3.5.2). The paper
fine-tuned its released models on each task alone: give one --data.path. T5 is the folder of a run or of a checkpoint
of transformers, such as google-t5/t5-small has; its tokenizer comes with it. For other sizes give --model too, as in
experiments.t5_base.
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """T5 small on GLUE as text to text. python -m experiments.t5_small_tasks [--scale=laptop]"""
  tasks = ('cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')
  paper = Experiment(
      't5_small_tasks', family='t5', model=t5.small('bfloat16'), objective=TextToText(decoder_length=128),
      data=DataConfig(
          path=tuple(f'task:{name}:tfds:glue/{name}' for name in tasks),
          prepare=TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False), assembly='examples'),
      optim=OptimConfig(kind='adafactor', peak=1e-3, warmup=0, schedule='constant', clip=0.0, weight_decay=0.0),
      train=TrainConfig(phases=(Phase(1 << 18, 512, 128),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
