"""Every recipe at the paper's scale, compiled for its TPU pod, which need not be there: does it fit, and what binds it?

    python -m benchmarks.fits
    python -m benchmarks.fits --recipe albert_xxlarge deberta_large

Needs the extra `tpu`. A minute or more each; one row of a table a recipe, one figure a compiled phase.
"""
import argparse
import os
import re
import subprocess
import sys

from plm_jax import recipes


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--recipe', choices=recipes.every(), nargs='*', default=list(recipes.every()))
  args = parser.parse_args()
  print('| recipe | pod | devices | HBM a device, GiB, by phase | bound, ms | MFU | compiled in s |')
  print('|---' * 7 + '|')
  failed = 0
  for recipe in args.recipe:
    row = recipes.find(recipe).row
    pod = row.pod + recipes.mesh_options(row)
    done = subprocess.run(
        [sys.executable, '-m', 'plm_jax', 'train', recipe, '--mode=compile', *f'--topology={pod}'.split()],
        capture_output=True, text=True, check=False, env={**os.environ, 'JAX_PLATFORMS': 'cpu'})
    devices = re.search(r': (\d+ x [^,]+),', done.stdout)
    totals = re.findall(r'total +([\d.]+) GiB of ([\d.]+)', done.stdout)
    seconds = re.findall(r'compiled in (\d+) s', done.stdout)
    bounds = re.findall(r'bound by (\w+): .*?takes ([\d.]+) ms .*?MFU (\d+%)', done.stdout)
    fits = [f'{used} of {size}' for used, size in totals]
    # Where arguments and temporaries together pass the memory the compiler has not always said so.
    failed += any(float(used) > float(size) for used, size in totals)
    if done.returncode:
      failed += 1
      error = done.stderr.strip().splitlines()
      fits.append(f'FAILED: {error[0][:300] if error else done.returncode}')
    print(f'| {recipe} | {pod} | {devices[1] if devices else ""} | {"; ".join(fits)} | '
          f'{"; ".join(f"{took} ({what})" for what, took, _ in bounds)} | {"; ".join(mfu for *_, mfu in bounds)} | '
          f'{"; ".join(seconds)} |', flush=True)
  sys.exit(failed > 0)


if __name__ == '__main__':
  main()
