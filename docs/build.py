"""Build the site in both languages: `python docs/build.py site`.

English pages go to `site/`, Chinese pages to `site/zh/`. A page without a Chinese version is there
in English, so that every link works in both languages. Warnings, such as dead links, are errors.
Set PLM_JAX_SOURCE to the https address of the repository for a link to it.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).parent


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('output', type=pathlib.Path, help='folder of the site')
  parser.add_argument('--language', choices=('en', 'zh', 'both'), default='both')
  args = parser.parse_args()
  if args.language != 'zh':
    run_sphinx(DOCS, args.output, 'en')
  if args.language != 'en':
    with tempfile.TemporaryDirectory() as folder:
      sources = pathlib.Path(folder) / 'docs'
      merge_sources(sources)
      run_sphinx(sources, args.output / 'zh', 'zh_CN')


def merge_sources(folder: pathlib.Path) -> None:
  """Copy the English sources, then the Chinese pages over them."""
  shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns('zh', 'site', '_build', '__pycache__'))
  shutil.copytree(DOCS / 'zh', folder, dirs_exist_ok=True)


def run_sphinx(sources: pathlib.Path, output: pathlib.Path, language: str) -> None:
  """Build the site of one language; a warning ends the build."""
  subprocess.run(
      [sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q', '-c', DOCS, '-D',
       f'language={language}', '-d', output / '.doctrees', sources, output], check=True)


if __name__ == '__main__':
  main()
