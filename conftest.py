"""Options of the test suite, what its processes share, and the table of the parity tests at its end."""
import atexit
import collections
import os
import pathlib
import shutil
import signal
import tempfile

GOLDEN = pathlib.Path(__file__).parent / 'tests' / 'golden'

# What one process of the suite has compiled, its workers and the commands that they start need not compile again.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  os.environ['JAX_COMPILATION_CACHE_DIR'] = tempfile.mkdtemp(prefix='plm_jax-compiled-')
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.2')
  atexit.register(shutil.rmtree, os.environ['JAX_COMPILATION_CACHE_DIR'], ignore_errors=True)


# A shell ignores Ctrl-C in the commands that it starts in the background, and what it starts inherits that: tests of
# signals need the usual handler, however the suite was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
  parser.addoption('--oracles', metavar='DIR', default=str(GOLDEN),
                   help='folder of parity cases, FAMILY/CASE/case.json and its files (default: tests/golden)')


def pytest_terminal_summary(terminalreporter):
  """Case, output, error, tolerance, verdict; what is not supported is listed and counted."""
  found = collections.OrderedDict()
  for reports in terminalreporter.stats.values():
    for report in reports:
      rows = dict(getattr(report, 'user_properties', ())).get('parity')
      if rows is not None:
        found[report.nodeid] = rows
  if not found:
    return
  rows = [row for case in sorted(found) for row in found[case]]
  width = [max(len(row[column]) for row in rows) for column in range(2)]
  write = terminalreporter.write_line
  terminalreporter.section('parity')
  write(f'{"case":{width[0]}}  {"output":{width[1]}}  {"error":>9}  {"tolerance":>9}  verdict')
  for case, output, error, tolerance, verdict in rows:
    write(f'{case:{width[0]}}  {output:{width[1]}}  {error:>9}  {tolerance:>9}  {verdict}')
  counts = collections.Counter(row[4].split(':')[0] for row in rows)
  cases = collections.Counter('unsupported' if row[4].startswith('unsupported') else 'run' for row in
                              {row[0]: row for row in rows}.values())
  write(f'cases: {cases["run"]} run, {cases["unsupported"]} unsupported; '
        f'outputs: {counts["ok"]} ok, {counts["FAILED"]} failed, '
        f'{counts["not compared"]} not compared in part or whole')
