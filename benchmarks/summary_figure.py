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
  new, _, old = section.partition('\n## ')[0].partition('The other families')
  old = old.partition('The changes:')[0]
  ratios = {'AMD EPYC, faster of eager and torch.compile': dict(ROW.findall(new)),
            'Intel Xeon, eager': dict(ROW.findall(old))}

  plt.rcParams.update({'svg.hashsalt': 'plm_jax', 'font.size': 9})
  figure, axis = plt.subplots(figsize=(7, 3.6))
  families: list[str] = []
  for machine, found in ratios.items():
    places = [len(families) + number for number in range(len(found))]
    axis.barh(places, [float(ratio) for ratio in found.values()], height=0.6, label=machine)
    families += found
  axis.axvline(1, color='black', linewidth=1)
  axis.set(yticks=range(len(families)), yticklabels=families,
           xlabel='speed of a training step on two CPU cores, transformers = 1')
  axis.invert_yaxis()
  axis.legend(frameon=False, loc='lower center', bbox_to_anchor=(0.5, 1))
  figure.savefig(HERE / 'figures/summary.svg', metadata={'Date': None}, bbox_inches='tight')


if __name__ == '__main__':
  main()
