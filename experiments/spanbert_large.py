"""SpanBERT-large, as published (Joshi et al. 2020, section 4.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --vocab=28996 --no-lowercase
    python -m experiments.spanbert_large --data.path=gs://BUCKET/records    # 64 TPU v3 chips (v3-128)
    python -m experiments.spanbert_large --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.spanbert_large --scale=test                       # seconds

2,400,000 steps of 256 rows of 512 tokens of one document; it took 15 days on 32 V100 GPUs. BERT's
text: BooksCorpus and English Wikipedia, cased. It starts fresh; --warm-start=FOLDER starts from a BERT, whose heads are
taken over but for the new one. On a pod every worker has to run the command, with --hosts.distributed=True (see
scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import spanbert
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """SpanBERT-large: 24 layers of 1024, span masks. python -m experiments.spanbert_large [--scale=laptop]"""
  # Section 4.2: a decoupled decay of 0.1, an epsilon of 1e-8, BERT's warmup and peak.
  optim = OptimConfig(peak=1e-4, warmup=10_000, schedule='linear', eps=1e-8, weight_decay=0.1, bias_correction=True)
  paper = Experiment(
      'spanbert_large', model=spanbert.large('bfloat16'), objective=SpanBoundary(),
      data=DataConfig(prepare=TextConfig(lowercase=False)), optim=optim,
      train=TrainConfig(phases=(Phase(2_400_000, 512, 256),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
