"""Continued pre-training of models whose own training is not published: Qwen3 and Gemma 3."""
import functools

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import gemma3, qwen3
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes import llama
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

QWEN3_DESCRIPTION = """\
Continued pre-training of Qwen3 (Yang et al. 2025, arXiv:2505.09388).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=qwen3_0b6 \\
        --tokenizer=Qwen/Qwen3-0.6B-Base
    python -m plm_jax train qwen3_0b6 --warm-start=Qwen/Qwen3-0.6B-Base \\
        --data.path=gs://BUCKET/records                                   # 16 TPU v5e chips
    python -m plm_jax train qwen3_0b6 --scale=laptop                      # 2 CPU cores: 40 minutes
    python -m plm_jax train qwen3_0b6 --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train qwen3_0b6 --scale=test                        # seconds

A LLaMA with QK-norm and tied embeddings. **The settings of its training are not published**: the
paper has neither learning rates nor batch sizes. These recipes are for continued pre-training from
a released checkpoint (--warm-start), with settings of ours: 10.5 billion tokens in batches of one
million at sequence length 4,096, a peak learning rate of 2e-5, a warmup of 100 updates, a cosine to
a tenth, betas 0.9 and 0.95 and a weight decay of 0.1. Without --warm-start they train from scratch,
which at these learning rates is of no use at paper scale.

Documents in one sequence do not attend to each other. They keep their blank lines, indentation and
line ends (--data.prepare.sentences=none). A file of plain text is one document;
--data.prepare.documents=blank-lines divides it.
"""
# The loss has the logits of a sixteenth of the vocabulary at a time.
ContinuedSize = functools.partial(
    RecipeSize, peak=2e-5, steps=10_000, length=4096, batch=256, accumulate=16, pod='v5e:4x4')
# Parameters of transformers' Qwen3ForCausalLM; published as 0.6B.
QWEN3_SIZES = {
    '0b6': ContinuedSize(model=qwen3.qwen3_0_6b, parameters=596_049_920)}
BYTES = TextConfig(kind='byte-bpe', layout='gpt2', lowercase=False, sentences='none')


def make_run(family: str, text: TextConfig, row: RecipeSize) -> PretrainRun:
  """Build a run that continues the pre-training of a model."""
  optim = AdamW(
      peak=row.peak, warmup=100, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  return PretrainRun(
      row.name, family=family, objective=CausalLM(loss_blocks=16), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=text, assembly='packed'), train=row.make_train_config())


QWEN3 = RecipeFamily(
    'qwen3', QWEN3_DESCRIPTION, QWEN3_SIZES, functools.partial(make_run, 'qwen3', BYTES))


GEMMA3_DESCRIPTION = """\
Continued pre-training of Gemma 3 (Gemma Team 2025, arXiv:2503.19786).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gemma3_270m \\
        --tokenizer=google/gemma-3-270m
    python -m plm_jax train gemma3_270m --warm-start=google/gemma-3-270m \\
        --data.path=gs://BUCKET/records                                   # 16 TPU v5e chips
    python -m plm_jax train gemma3_270m --scale=laptop                    # 2 CPU cores: 40 minutes
    python -m plm_jax train gemma3_270m --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gemma3_270m --scale=test                      # seconds

The text models of Gemma 3: five layers of six have a sliding window of 512 tokens, and the
vocabulary has 262,144 tokens, more than half of the parameters of 270m. **The settings of its
training are not published**, and it is distilled from a larger model. These recipes are for
continued pre-training from a released checkpoint (--warm-start), with the settings of ours that
`qwen3_0b6` has: 10.5 billion tokens in batches of one million at sequence length 4,096, a peak
learning rate of 2e-5, a warmup of 100 updates and a cosine to a tenth. Without --warm-start they
train from scratch, which at these learning rates is of no use at paper scale.

Documents in one sequence do not attend to each other. They keep their blank lines, indentation and
line ends (--data.prepare.sentences=none). A file of plain text is one document;
--data.prepare.documents=blank-lines divides it.
"""
# Parameters of transformers' Gemma3ForCausalLM; published as 270M.
GEMMA3_SIZES = {
    '270m': ContinuedSize(model=gemma3.gemma3_270m, parameters=268_098_176)}
GEMMA3 = RecipeFamily(
    'gemma3', GEMMA3_DESCRIPTION, GEMMA3_SIZES,
    functools.partial(make_run, 'gemma3_text', llama.TEXT))
