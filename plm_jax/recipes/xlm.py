"""XLM (Lample and Conneau 2019, arXiv:1901.07291, sections 3 and 5.1).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=xlm_xnli15
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=xlm_xnli15 \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax prepare SWAHILI gs://BUCKET/sw --for=xlm_xnli15 \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train xlm_xnli15 --data.path gs://BUCKET/de gs://BUCKET/sw  # 256 TPU v3 chips
    python -m plm_jax train xlm_xnli15 --scale=laptop                       # 2 CPU cores: 3 minutes
    python -m plm_jax train xlm_xnli15 --scale=test                         # seconds
    python -m plm_jax train xlm_xnli15_tlm --warm-start=runs/xlm_xnli15 \\
        --objective.pair.languages de sw de-sw --data.path gs://BUCKET/de gs://BUCKET/sw \\
        task:columns-de-sw:pairs.tsv.gz
    python -m plm_jax train xlm_xnli15_tlm --scale=laptop --objective.pair.languages de en de-en \\
        --data.path de.txt en.txt task:columns-de-en:pairs.tsv

xnli15 is masked language modeling on the Wikipedias of XNLI's 15 languages: streams of 256 tokens,
64 for each of 64 GPUs, without weight decay. Each token gets an embedding of its language. The
position of a corpus in --data.path is the number of its language. Languages are sampled by size to
the power 0.7.

The paper gives a learning rate between 1e-4 and 5e-4. This recipe follows the XNLI-15 command in
the README of facebookresearch/XLM: adam_inverse_sqrt with 1e-4, betas 0.9 and 0.98. The warmup of
4,000 updates and the epsilon of 1e-8 are defaults of xlm/optim.py. Gradients are clipped at 5
(train.py, clip_grad_norm). Masked tokens are sampled by frequency to the power -0.5 (section 3.2).
Frequencies are counted in each batch here; the released commands leave this out (train.py,
sample_alpha: 0).

Differences: a released run ends when the held-out perplexity of the languages stops falling, here
after 500,000 updates. The tokenizer is SentencePiece; the authors used BPE on words of Moses.
Weight matrices are initialized like torch's nn.Linear; biases start at zero, where torch samples
them uniformly.

xnli15_tlm continues a run of xnli15 with translation language modeling: a sequence holds a text and
its translation, and each helps to predict the masks of the other (section 3.3). The parallel
corpora of --data.path are columns of tables. --objective.pair.languages names the languages of each
corpus, in the order of the first run. The paper's updates alternate between streams and pairs, the
latter with 4,000 tokens per GPU. Here --data.weights sets the share of each corpus; by default it
follows the sizes of the corpora.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import xlm
from plm_jax.objectives.masking import Smoothed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.objectives.translation_rows import Translations
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

# Parameters of transformers' XLMWithLMHeadModel; published as 250M (README of
# facebookresearch/XLM).
XNLI15 = RecipeSize(
    model=xlm.xlm_xnli15, parameters=249_071_384, peak=1e-4, steps=500_000, length=256, batch=4096,
    pod='v3:16x16', published_hardware='64 V100')
SIZES = {'xnli15': XNLI15, 'xnli15_tlm': XNLI15}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=4000, schedule='inverse_sqrt', b2=0.98, eps=1e-8, bias_correction=True,
      weight_decay=0.0, clip=5.0)
  pair = Translations() if row.name.endswith('tlm') else FullSentences()
  text = TextConfig(kind='sentencepiece-unigram')
  return PretrainRun(
      row.name, family='xlm', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedLM(pair=pair, language_ids=True, masking=Smoothed(0.5)),
      data=DataConfig(prepare=text, assembly='sentences', temperature=1 / 0.7),
      optim=optim, train=row.make_train_config())


XLM = RecipeFamily('xlm', __doc__, SIZES, make_run)
