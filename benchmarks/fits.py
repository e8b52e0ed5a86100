"""Every recipe at the paper's scale, compiled for a TPU pod that is not there: does its step fit the memory?

    python -m benchmarks.fits
    python -m benchmarks.fits --recipe albert_xxlarge deberta_large

Needs the extra `tpu`. A minute or more each; one row of a table a recipe, one figure a compiled phase.
"""
import argparse
import os
import re
import subprocess
import sys

# The paper's own pod where it had one, else one on which a device has few rows; then options, as in the recipe's
# command.
PODS = {
    'bert_base': 'v2:4x4', 'bert_large': 'v3:8x8',
    'roberta_base': 'v3:16x16', 'roberta_large': 'v3:16x16', 'roberta_segment_pair': 'v3:4x4',
    'roberta_sentence_pair': 'v3:4x4', 'roberta_full_sentences': 'v3:4x4', 'roberta_doc_sentences': 'v3:4x4',
    'albert_base': 'v3:16x16', 'albert_large': 'v3:16x16', 'albert_xlarge': 'v3:16x16', 'albert_xxlarge': 'v3:16x32',
    'spanbert_base': 'v3:4x4', 'spanbert_large': 'v3:8x8', 'distilbert_base': 'v3:4x4',
    'deberta_base': 'v3:8x8', 'deberta_large': 'v3:8x16', 'deberta_v2_xlarge': 'v4:4x4x8',
    'deberta_v2_xxlarge': 'v4:4x8x8 --mesh.fsdp=8', 'deberta_v3_xsmall': 'v3:8x8', 'deberta_v3_small': 'v3:8x8',
    'deberta_v3_base': 'v3:16x16', 'deberta_v3_large': 'v4:4x8x8',
    'electra_small': 'v3:2x2', 'electra_base': 'v3:4x4', 'electra_large': 'v3:8x16',
    'xlnet_base': 'v3:4x4', 'xlnet_large': 'v3:16x32',
    'gpt_base': 'v3:4x4', 'gpt2_small': 'v3:8x8', 'gpt2_medium': 'v3:16x16', 'gpt2_large': 'v3:8x16 --mesh.fsdp=8',
    'gpt2_xl': 'v3:8x16 --mesh.fsdp=16', 'gpt2_chinese': 'v3:8x8',
    'gpt3_small': 'v4:4x4x4', 'gpt3_medium': 'v5p:4x4x4', 'gpt3_large': 'v4:4x4x4', 'gpt3_xl': 'v4:4x4x4 --mesh.fsdp=8',
    'gpt3_2b7': 'v4:4x4x4 --mesh.fsdp=64', 'gpt3_6b7': 'v5p:4x4x4 --mesh.fsdp=64',
    'gpt3_13b': 'v5p:4x4x8 --mesh.fsdp=64', 'gpt3_175b': 'v4:8x12x16 --mesh.fsdp=192 --mesh.tensor=8',
    'glm_base': 'v3:8x8', 'glm_large': 'v3:8x8', 'glm_large_doc': 'v3:8x8', 'glm_large_sentence': 'v3:8x8',
    'glm_410m': 'v3:8x8', 'glm_515m': 'v3:8x16', 'glm_chinese': 'v3:8x8',
    'llama_7b': 'v4:4x4x4 --mesh.fsdp=64', 'llama_13b': 'v4:4x4x8 --mesh.fsdp=128',
    'llama_33b': 'v4:4x8x8 --mesh.fsdp=64 --mesh.tensor=4', 'llama_65b': 'v4:8x8x8 --mesh.fsdp=128 --mesh.tensor=4',
    'palm_8b': 'v4:4x4x8 --mesh.fsdp=32 --mesh.tensor=4', 'palm_62b': 'v4:8x8x8 --mesh.fsdp=128 --mesh.tensor=4',
    'palm_540b': 'v4:8x16x16 --mesh.fsdp=128 --mesh.tensor=16',
    't5_small': 'v3:8x8', 't5_base': 'v3:16x16', 't5_large': 'v3:16x32', 't5_3b': 'v4:8x8x8 --mesh.fsdp=8',
    't5_11b': 'v4:8x8x16 --mesh.fsdp=128', 't5_v1_1_small': 'v3:8x8', 't5_v1_1_base': 'v3:16x16',
    't5_v1_1_large': 'v3:16x32', 't5_v1_1_xl': 'v4:8x8x8 --mesh.fsdp=16', 't5_v1_1_xxl': 'v4:8x8x16 --mesh.fsdp=128',
    'mt5_small': 'v3:16x16', 'byt5_small': 'v3:16x16', 't5_small_tasks': 'v3:2x2', 'bart_base': 'v3:4x4',
    'bart_large': 'v3:32x32', 'bart_translation_source': 'v3:4x4', 'bart_translation': 'v3:4x4',
    'mbart_large': 'v4:8x8x8 --mesh.fsdp=8 --train.accumulate=4', 'ul2_20b': 'v4:8x8x8 --mesh.fsdp=128',
    'transformer_base': 'v3:2x2', 'transformer_big': 'v3:4x4',
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--recipe', choices=PODS, nargs='*', default=list(PODS))
  args = parser.parse_args()
  print('| recipe | pod | devices | HBM a device, GiB, by phase | compiled in s |\n|---|---|---|---|---|')
  failed = 0
  for recipe in args.recipe:
    done = subprocess.run(
        [sys.executable, '-m', f'experiments.{recipe}', '--mode=compile', *f'--topology={PODS[recipe]}'.split()],
        capture_output=True, text=True, check=False, env={**os.environ, 'JAX_PLATFORMS': 'cpu'})
    devices = re.search(r': (\d+ x [^,]+),', done.stdout)
    totals = re.findall(r'total +([\d.]+) GiB of ([\d.]+)', done.stdout)
    seconds = re.findall(r'compiled in (\d+) s', done.stdout)
    fits = [f'{used} of {size}' for used, size in totals]
    # Where arguments and temporaries together pass the memory the compiler has not always said so.
    failed += any(float(used) > float(size) for used, size in totals)
    if done.returncode:
      failed += 1
      error = done.stderr.strip().splitlines()
      fits.append(f'FAILED: {error[0][:300] if error else done.returncode}')
    print(f'| {recipe} | {PODS[recipe]} | {devices[1] if devices else ""} | {"; ".join(fits)} | {"; ".join(seconds)} |',
          flush=True)
  sys.exit(failed > 0)


if __name__ == '__main__':
  main()
