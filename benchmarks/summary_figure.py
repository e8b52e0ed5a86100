"""Draw the figure of RESULTS.md: training steps per family next to transformers, from results/speed.md.

    python -m benchmarks.summary_figure
"""
import pathlib
import re

import matplotlib

matplotlib.use('svg')

import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
ROW = re.compile(r'^\| ([\w-]+) \| \d+ \| \d+ \| ([\d.]+) \|', re.M)


def main() -> None:
  section = (HERE / 'results/speed.md').read_text().partition('## One optimizer step of every family')[2]
  section = section.partition('\n## ')[0]
  amd, _, xeon = section.partition('On an Intel Xeon')
  ratios = {'AMD EPYC': dict(ROW.findall(amd)), 'Intel Xeon': dict(ROW.findall(xeon))}
  families = [family for family in ratios['Intel Xeon'] if family in ratios['AMD EPYC']]

  plt.rcParams.update({'svg.hashsalt': 'plm_jax', 'font.size': 9})
  figure, axis = plt.subplots(figsize=(7, 3.6))
  for number, (machine, found) in enumerate(ratios.items()):
    places = [place + 0.4 * number for place in range(len(families))]
    axis.barh(places, [float(found[family]) for family in families], height=0.4, label=machine)
  axis.axvline(1, color='black', linewidth=1)
  axis.set(yticks=[place + 0.2 for place in range(len(families))], yticklabels=families,
           xlabel='speed of a training step on two CPU cores, transformers = 1')
  axis.invert_yaxis()
  axis.legend(frameon=False)
  figure.savefig(HERE / 'figures/summary.svg', metadata={'Date': None}, bbox_inches='tight')


if __name__ == '__main__':
  main()
