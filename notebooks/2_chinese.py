# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 2. Your language: Chinese
#
# Chinese is written without spaces. So you have to choose what a token is and what a word is before you train a model.
# This notebook trains a tokenizer, segments words, masks whole words (全词掩码), and pre-trains a small BERT. It takes about
# five minutes on two CPU cores. 这本笔记从分词器开始，用全词掩码训练一个小型中文 BERT；把 `TEXT` 换成你自己的文件即可。
#
# *To run this notebook in [Colab](https://colab.research.google.com/), choose File > Upload notebook, and upload the
# wheel of plm_jax next to it.*

# %% Install plm_jax if it is missing (one minute in Colab) tags=["hide-input"]
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

NEEDS = ['jieba', 'matplotlib']


def install(*packages):
  subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *packages], check=True)


if importlib.util.find_spec('plm_jax') is None:
  here = pathlib.Path.cwd()
  wheels = sorted(map(str, here.glob('plm_jax-*.whl')))
  checkouts = [str(folder) for folder in (here, here.parent) if (folder / 'plm_jax' / '__init__.py').exists()]
  source = os.environ.get('PLM_JAX_SOURCE') or next(iter([*wheels, *checkouts]), '')  # a path or git+https://...
  assert source, 'upload plm_jax-*.whl to this folder, or set PLM_JAX_SOURCE to the address of the repository'
  chips = ['jax[cuda13]'] * bool(shutil.which('nvidia-smi')) + ['jax[tpu]'] * os.path.exists('/dev/vfio/0')
  install(source, *chips)
if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
  install(*missing)

SCALE = os.environ.get('PLM_JAX_NOTEBOOK_SCALE', 'laptop')  # laptop: minutes on two CPU cores; test: seconds

# %%
import html
import random

from IPython.display import HTML
import matplotlib.pyplot as plt

import plm_jax
from plm_jax.preparation.word_segmentation import make_segmenter
from plm_jax.tokenizers import load

# %% [markdown]
# ## The text
#
# To train on a file of your own (Wikipedia, a novel, your notes), set `TEXT` to its name. The file has one paragraph per
# line and a blank line between documents. Otherwise the next cell generates a text from templates: people with ten
# occupations, in cities, seasons and markets. The facts in this text are known, so you can see which ones the model learned.

# %%
TEXT = os.environ.get('PLM_JAX_NOTEBOOK_TEXT_ZH', '')  # your file; empty: generate a text

CAPITALS = {'法国': '巴黎', '英国': '伦敦', '日本': '东京', '德国': '柏林', '意大利': '罗马', '西班牙': '马德里', '俄罗斯': '莫斯科',
            '埃及': '开罗', '泰国': '曼谷', '韩国': '首尔', '希腊': '雅典', '古巴': '哈瓦那', '中国': '北京', '越南': '河内'}
TRADES = {'老师': ('学校', '讲课', '粉笔'), '医生': ('医院', '看病', '听诊器'), '农民': ('田里', '种水稻', '锄头'),
          '厨师': ('饭店', '做菜', '铁锅'), '司机': ('路上', '开车', '地图'), '画家': ('画室', '画画', '毛笔'),
          '渔民': ('海边', '捕鱼', '渔网'), '记者': ('报社', '写新闻', '相机'), '木匠': ('作坊', '做桌子', '锯子'),
          '程序员': ('公司', '写程序', '电脑')}
SEASONS = {'春天': ('天气暖和', '桃花开了', '放风筝'), '夏天': ('天气炎热', '荷花开了', '去游泳'),
           '秋天': ('天气凉爽', '菊花开了', '摘苹果'), '冬天': ('天气寒冷', '梅花开了', '堆雪人')}
FRUITS = {'苹果': ('红色', '甜'), '香蕉': ('黄色', '甜'), '柠檬': ('黄色', '酸'), '葡萄': ('紫色', '甜'), '橙子': ('橙色', '酸'),
          '西瓜': ('绿色', '甜'), '草莓': ('红色', '甜'), '李子': ('紫色', '酸')}
NAMES = ['小明', '小红', '王芳', '李强', '张伟', '刘洋', '陈静', '赵敏', '孙丽', '周杰']


def document(draw):
  """Generates some paragraphs about a person."""
  name, trade, season = draw.choice(NAMES), draw.choice([*TRADES]), draw.choice([*SEASONS])
  place, work, tool = TRADES[trade]
  weather, flower, play = SEASONS[season]
  country, other = draw.sample([*CAPITALS], 2)
  fruit, second = draw.sample([*FRUITS], 2)
  about = draw.sample([
      f'{name}是一名{trade}。', f'{name}每天在{place}工作，主要是{work}。', f'{trade}离不开{tool}。',
      f'{name}用{tool}{work}，已经做了{draw.randint(2, 30)}年。', f'人们说，好{trade}都喜欢自己的{tool}。'], 4)
  nature = draw.sample([
      f'{season}到了，{weather}，{flower}。', f'{season}的时候，{name}喜欢{play}。', f'因为{weather}，大家都出来{play}。',
      f'到了{season}，公园里{flower}。'], 3)
  travel = draw.sample([
      f'{country}的首都是{CAPITALS[country]}。', f'{name}去过{CAPITALS[country]}，那是{country}的首都。',
      f'从{CAPITALS[country]}到{CAPITALS[other]}要坐飞机。', f'{name}想去{other}，先到{CAPITALS[other]}看朋友。'], 3)
  market = draw.sample([
      f'{fruit}是{FRUITS[fruit][0]}的，味道很{FRUITS[fruit][1]}。', f'{name}在市场买了{fruit}和{second}。',
      f'{second}很{FRUITS[second][1]}，{name}不{draw.choice(("想", "会"))}多吃。',
      f'{FRUITS[second][0]}的{second}摆在桌子上。'], 3)
  parts = [about, nature, travel, market]
  draw.shuffle(parts)
  return '\n'.join(''.join(part) for part in parts)


pathlib.Path('runs').mkdir(exist_ok=True)
if not TEXT:
  TEXT = 'runs/chinese.txt'
  draw = random.Random(0)
  pathlib.Path(TEXT).write_text('\n\n'.join(document(draw) for _ in range(8000 if SCALE == 'laptop' else 300)),
                                encoding='utf-8')
print(pathlib.Path(TEXT).read_text(encoding='utf-8')[:300])

# %% [markdown]
# ## Words
#
# BERT's Chinese tokenizer makes one token per character. A dictionary, here the one of jieba, defines the words. Words do
# not change the tokens: they only define which tokens are masked together.

# %%
sentence = '法国的首都是巴黎，那里的程序员每天在公司写程序。'
_, words = make_segmenter('jieba')(sentence)


def boxes(pieces, colors):
  """Draws pieces of text as HTML boxes, because not every plotting font has Chinese characters."""
  return HTML(''.join(
      f'<span style="background:{color};color:#222;border-radius:4px;padding:2px 6px;margin:2px;display:inline-block">'
      f'{html.escape(piece)}</span>' for piece, color in zip(pieces, colors, strict=True)))


boxes(words, [('#cfe2f3', '#fce5cd')[number % 2] for number in range(len(words))])

# %% [markdown]
# ## Token masking and whole-word masking
#
# With `unit='token'` (the original BERT), half of a word may stay visible and reveal the other half: 首[MASK] is easy and
# teaches little. With `unit='word'` (全词掩码, whole-word masking: BERT-wwm, Cui et al. 2019), all characters of a word are
# masked. `inspect` shows one training example of each kind.

# %%
def recipe(unit):
  """Builds a run from BERT's recipe, with words from jieba."""
  return plm_jax.recipe('bert_base', scale=SCALE, output=f'runs/chinese_{unit}',
                        objective={'masking': {'unit': unit}},
                        data={'path': (TEXT,), 'prepare': {'segmenter': 'jieba', 'heldout': 0.02}})


COLORS = {'mask': '#f4b400', 'other': '#e06666', 'same': '#93c47d', 'special': '#cccccc'}
for unit in ('token', 'word'):
  row, = plm_jax.inspect(recipe(unit), rows=1).rows
  read = row.lanes[-1].columns
  labels = [column.target for column in read if column.target]
  display(HTML(f'<b>unit={unit!r}</b>, labels: {html.escape(" ".join(labels))}'))
  display(boxes([column.piece for column in read],
                [COLORS.get(column.kind, '#f3f3f3') for column in read]))

# %% [markdown]
# ## Train

# %%
trained = plm_jax.train(recipe('word'))
tokenizer = load('runs/chinese_word/tokenizer')
print(trained)
print(f'{tokenizer.vocab.size:,} tokens, such as', ' '.join(tokenizer.pieces[200:230]))

# %% tags=["hide-input"]
curves = plm_jax.history('runs/chinese_word').curves
figure, axis = plt.subplots(figsize=(6, 3.2))
for split, style in (('train', {'alpha': 0.4}), ('heldout', {'marker': 'o'})):
  axis.plot(*zip(*curves['mlm_accuracy'][split], strict=True), label=split, **style)
axis.axhline(curves['mlm_baseline']['heldout'][-1][1], color='grey', linestyle=':', label='most frequent character')
axis.set(title='Accuracy on the characters of masked words', xlabel='step', ylim=(0, 1))
axis.legend()
plt.show()

# %% [markdown]
# ## Test what the model learned
#
# Capitals, tools of occupations, weather: each blank is one character, and all characters of a word are predicted together.

# %%
ASKED = {'法国的首都是[MASK][MASK]。': '巴黎', '日本的首都是[MASK][MASK]。': '东京', '渔民离不开[MASK][MASK]。': '渔网',
         '画家离不开[MASK][MASK]。': '毛笔', '冬天到了，天气[MASK][MASK]，梅花开了。': '寒冷', '苹果是[MASK]色的，味道很甜。': '红'}
said = [''.join(blank[0].word if hasattr(blank[0], 'word') else blank[0][0] for blank in blanks)
        for blanks in plm_jax.fill_mask(trained, [*ASKED], top=1)]
right = [told == wanted for told, wanted in zip(said, ASKED.values(), strict=True)]
display(HTML('<br>'.join(
    f'{html.escape(prompt)} → <b>{html.escape(told)}</b> {"✓" if fine else "✗ " + wanted}'
    for (prompt, wanted), told, fine in zip(ASKED.items(), said, right, strict=True))))
print(f'{sum(right)} of {len(right)} correct')

# %% [markdown]
# ## Export the model

# %%
shutil.rmtree('runs/chinese_exported', ignore_errors=True)
print(plm_jax.export(trained, 'runs/chinese_exported').how)
file = shutil.make_archive('runs/chinese_bert', 'zip', 'runs/chinese_exported')
print(os.path.relpath(file), f'{os.path.getsize(file) / 1e6:.1f} MB')

# %% [markdown]
# For a real corpus, use a larger vocabulary (`model={'vocab': 8192}`; BERT's Chinese model has 21,128 tokens) and train for
# hours instead of minutes. Notebook 7 estimates the time. If your text already has spaces between words, you need no
# dictionary: `prepare={'segmenter': 'spaces'}`.
