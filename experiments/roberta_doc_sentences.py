"""RoBERTa's input format DOC-SENTENCES (Liu et al. 2019, section 4.2 and table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --vocab=50265
    python -m experiments.roberta_doc_sentences --data.path=gs://BUCKET/records    # 16 TPU v3 chips (v3-32)
    python -m experiments.roberta_doc_sentences --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.roberta_doc_sentences --scale=test                       # seconds

Whole sentences of one document, at most 512 tokens. Rows at the ends of documents are short; the paper makes the batch
larger to have the tokens of FULL-SENTENCES again. How much depends on the text:

    python -m plm_jax rows RECORDS --length=512 --batch=256

says how many rows of this format have the tokens of 256 rows of the other. 288 is for articles of 4,000
tokens on average, shorter ones need more: give --train.phases.0.batch another. 1,000,000 steps.
On a pod every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import roberta
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import FullSentences
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """Whole sentences of one document. python -m experiments.roberta_doc_sentences [--scale=laptop]"""
  data = DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False))
  # The rate is that of table 3 for 256 rows; section 3.1: BERT's warmup, b2 of 0.98, full rows from the first step on.
  optim = OptimConfig(peak=1e-4, warmup=10_000, schedule='linear', b2=0.98, bias_correction=True, clip=0.0)
  paper = Experiment(
      'roberta_doc_sentences', family='roberta', model=roberta.base('bfloat16'),
      objective=MaskedLM(pair=FullSentences(reserve=0)), data=data, optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 512, 288),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
