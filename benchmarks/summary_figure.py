"""Draw the figure of RESULTS.md: training steps per family next to transformers, from results/speed.md.

    python -m benchmarks.summary_figure
"""
import pathlib
import re

import matplotlib

matplotlib.use('svg')

import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
ROW = re.compile(r'^\| ([\w-]+) \| \d+ \| (?:[\d]+ to \d+ \| )?\d+ \| (?:\d+ \| \d+ to \d+ \| )?([\d.]+) \|', re.M)


def main() -> None:
  section = (HERE / 'results/speed.md').read_text().partition('## One optimizer step of every family')[2]
  ratios = dict(ROW.findall(section.partition('\nEvery family')[0]))

  plt.rcParams.update({'svg.hashsalt': 'plm_jax', 'font.size': 9})
  figure, axis = plt.subplots(figsize=(7, 3.6))
  axis.barh(range(len(ratios)), [float(ratio) for ratio in ratios.values()], height=0.6)
  axis.axvline(1, color='black', linewidth=1)
  axis.set(yticks=range(len(ratios)), yticklabels=list(ratios),
           xlabel='speed of a training step on two CPU cores, transformers = 1')
  axis.invert_yaxis()
  figure.savefig(HERE / 'figures/summary.svg', metadata={'Date': None}, bbox_inches='tight')


if __name__ == '__main__':
  main()
