"""Draw the first picture of README and site: from text to a model, and what pre-training gains.

    python -m benchmarks.overview_figure

The bars are read from the tables in results/quality.md. The text stays text, in a font of the
reader's machine.
"""
import html
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / 'benchmarks/results/quality.md'
FONT = ('font-family="-apple-system, Segoe UI, Helvetica, Arial, PingFang SC, Microsoft YaHei, '
        'Noto Sans CJK SC, sans-serif"')
BLUE, GREY, DARK, MUTED, PALE = '#1f5fb0', '#b9bec7', '#1b1f24', '#5b6270', '#eef3fb'
WIDTH, HEIGHT = 860, 330


class Words(NamedTuple):
  """The text of the picture in one language."""

  steps: tuple[tuple[str, str, str], ...]
  """(title, first line, second line) of each of the boxes"""
  heading: str
  tasks: tuple[str, ...]
  """names of the rows, in the order of ROWS"""
  legend: tuple[str, str]


ENGLISH = Words(
    (('Your text', 'any language,', 'files or the hub'),
     ('plm_jax train', 'a published recipe:', 'BERT, GPT, T5, BART, ...'),
     ('Your model', 'report, fine-tuning,', 'export to transformers')),
    'What pre-training gains: small models, trained on two CPU cores',
    ('Named entities, English: F1', 'Summaries, English: ROUGE-1',
     'Translation, German to English: BLEU', 'Reviews, Chinese: accuracy',
     'Reviews, English: accuracy'),
    ('from scratch', 'pre-trained'))
CHINESE = Words(
    (('你的文本', '任何语言，', '本地文件或 hub'),
     ('plm_jax train', '论文的配方：', 'BERT、GPT、T5、BART 等'),
     ('你的模型', '报告、微调，', '导出到 transformers')),
    '预训练的收益：在两个 CPU 核上训练的小模型',
    ('命名实体，英文：F1', '摘要，英文：ROUGE-1', '翻译，德文到英文：BLEU', '评论，中文：准确率',
     '评论，英文：准确率'),
    ('从头训练', '预训练'))
PICTURES = {
    ROOT / 'docs/_static/overview.svg': ENGLISH, ROOT / 'docs/_static/overview_zh.svg': CHINESE}
ROWS = ('| BTC, 3 epochs | F1 |', '| DialogSum, dev | ROUGE-1 | 21.3 |',
        '| Multi30k, test2016, German to English | BLEU | 1.3 |',
        '| ChnSentiCorp, 1 epoch, sequences of 128, 3 seeds | accuracy |',
        '| SST-2, a quarter of an epoch | accuracy |')
"""beginnings of rows in results/quality.md; the next two cells are from scratch and pre-trained"""


def main() -> None:
  for path, words in PICTURES.items():
    path.write_text(draw(words), encoding='utf-8')


def read_scores() -> list[tuple[float, float]]:
  """Return the scores from scratch and pre-trained of each row, without standard deviations."""
  text, scores = RESULTS.read_text(encoding='utf-8'), []
  for row in ROWS:
    before, after = re.findall(rf'^{re.escape(row)} ([\d.]+)[^|]*\| ([\d.]+)', text, re.M)[0]
    scores.append((float(before), float(after)))
  return scores


def write_text(x: float, y: float, text: str, size: int = 13, color: str = DARK,
               weight: str = 'normal', anchor: str = 'start') -> str:
  """Return a line of text."""
  return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" '
          f'text-anchor="{anchor}" fill="{color}">{html.escape(text)}</text>')


def write_box(x: float, y: float, width: float, height: float, color: str, radius: int = 2) -> str:
  """Return a filled rectangle."""
  return (f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
          f'fill="{color}"/>')


def draw(words: Words) -> str:
  """Return the picture as SVG."""
  parts = [write_box(0, 0, WIDTH, HEIGHT, 'white', 0)]

  # From text to a model: three boxes with arrows between them.
  for number, (title, first, second) in enumerate(words.steps):
    x, middle = 20 + number * 290, 20 + number * 290 + 120
    parts += [write_box(x, 16, 240, 84, PALE, 8),
              write_text(middle, 43, title, 17, BLUE, 'bold', 'middle'),
              write_text(middle, 66, first, 13, MUTED, anchor='middle'),
              write_text(middle, 85, second, 13, MUTED, anchor='middle')]
    if number:
      parts.append(f'<path d="M{x - 42} 58h26m-8 -7l8 7l-8 7" fill="none" stroke="{BLUE}" '
                   'stroke-width="2.5"/>')

  # Scores from scratch and pre-trained, on a scale of 0 to 100.
  parts.append(write_text(20, 136, words.heading, 14, DARK, 'bold'))
  for number, (name, (before, after)) in enumerate(zip(words.tasks, read_scores(), strict=True)):
    y = 152 + number * 30
    parts.append(write_text(20, y + 15, name))
    for offset, value, color in ((0, before, GREY), (11, after, BLUE)):
      parts += [write_box(280, y + offset, 5 * value, 10, color),
                write_text(286 + 5 * value, y + offset + 9, f'{value:.1f}', 11,
                           MUTED if color == GREY else BLUE)]
  for x, name, color in ((280, words.legend[0], GREY), (400, words.legend[1], BLUE)):
    parts += [write_box(x, 307, 12, 12, color), write_text(x + 18, 318, name, 12, MUTED)]

  body = '\n'.join(parts)
  return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
          f'height="{HEIGHT}" {FONT}>\n{body}\n</svg>\n')


if __name__ == '__main__':
  main()
