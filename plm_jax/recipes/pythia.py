"""Pythia (Biderman et al. 2023, arXiv:2304.01373), by the files of EleutherAI/pythia.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=pythia_160m
    python -m plm_jax train pythia_160m --data.path=gs://BUCKET/records   # 64 TPU v5e chips
    python -m plm_jax train pythia_14m --scale=laptop                     # 2 CPU cores: 43 minutes
    python -m plm_jax train pythia_14m --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train pythia_14m --scale=test                       # seconds

A suite of causal language models that were trained on the same text in the same order, for research
on learning dynamics. Attention and MLP are parallel, and a quarter of each head has rotary
positions. 143,000 updates of 1,024 sequences of 2,048 tokens are 300 billion tokens of the Pile.
AdamW with betas 0.9 and 0.95, epsilon 1e-8, a weight decay of 0.1 of matrices and embeddings and
gradient clipping at 1; the warmup is a hundredth of the run, and a cosine falls to a tenth. There
is no dropout. Settings: models/SIZE/pythia-SIZE.yml in EleutherAI/pythia; initialization, order of
the schedule and parameters without decay: init_functions.py, learning_rates.py and utils.py in
EleutherAI/gpt-neox.

Sequences are pieces of the concatenated documents, which attend to each other. As in training
(bias-gelu-fusion), GELU is the tanh approximation; the released config.json states the exact form.

Released models have 154 checkpoints: updates 0, 1, 2, 4, ..., 512, 1,000, 2,000, ..., 143,000. Each
is a branch on the Hugging Face hub, so `plm_jax.load('EleutherAI/pythia-160m@step3000')` loads the
model after 3,000 updates, and `--train.save_every=1000` saves as many in a run of one's own.

Differences: training was in float16, here it is in bfloat16. A sequence begins with the end token
here. The other sizes are models (plm_jax/models/gpt_neox.py) without a recipe.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
import functools

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import gpt_neox
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

PythiaSize = functools.partial(RecipeSize, steps=143_000, length=2048, batch=1024)
# Parameters: README of EleutherAI/pythia, and of transformers' GPTNeoXForCausalLM. GPUs:
# models/*/pythia-*.yml of that repository.
SIZES = {
    '14m': PythiaSize(
        model=gpt_neox.pythia_14m, parameters=14_067_712, peak=1e-3, accumulate=4, pod='v5e:8x8',
        published_hardware='32 GPUs'),
    '160m': PythiaSize(
        model=gpt_neox.pythia_160m, parameters=162_322_944, peak=6e-4, accumulate=4, pod='v5e:8x8',
        published_hardware='32 GPUs'),
    '410m': PythiaSize(
        model=gpt_neox.pythia_410m, parameters=405_334_016, peak=3e-4, accumulate=8, pod='v5e:8x8',
        published_hardware='32 GPUs')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=1430, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  model = validation.with_paths(
      row.make_model(dropout=0.0, attention_dropout=0.0),
      {'block.mlp.activation': 'gelu_tanh'})
  text = TextConfig(kind='byte-bpe', layout='gpt2', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='gpt_neox', model=model, objective=CausalLM(isolated=False), optim=optim,
      data=DataConfig(prepare=text, assembly='packed'), train=row.make_train_config())


PYTHIA = RecipeFamily('pythia', __doc__, SIZES, make_run)
