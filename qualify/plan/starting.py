"""The files of a project of one's own: a matrix, waivers, a canary, and what a CI server runs.

::

    FOLDER ─┬─ matrices/NAME.yaml               what is qualified
            ├─ waivers.yaml                     accepted failures: none yet
            ├─ canaries/NAME-nightly.yaml       the matrix every night
            └─ .github/workflows/qualify.yml    .gitlab-ci.yml or Jenkinsfile: run, then gate
"""

from __future__ import annotations

from collections.abc import Mapping

from qualify.cards.model import ModelCard
from qualify.facts.ci import Ci
from qualify.facts.dtypes import Dtype
from qualify.plan.checking import first_matrix

WAIVERS = """\
# Accepted failures: each with an owner, a reason, a link and an expiry date, at most 90 days after it was created.
# The case still runs. `qualify waiver check {matrix}` says which are in force.
#
#   - id: decode-lse-on-pages
#     select: "*/decode/*/flashinfer-fa2"
#     checks: [lse]
#     owner: you@example.com
#     reason: the LSE is not used by this engine
#     link: https://example.com/issues/1
#     created: 2026-01-01
#     expires: 2026-03-31
waivers: []
"""

CANARY = """\
# The matrix every night: has anything drifted that nobody announced? `qualify canary serve --cards .` runs it.
canary: {name}-nightly
matrix: ../{matrix}
cron: "30 2 * * *"                        # UTC; minute hour day month weekday
stack_change: {{settle: 10m}}               # also when a driver, a library or the image changed
level: full
timeout: 6h
# alerts:
#   - {{target: oncall, kind: webhook, url: https://alerts.example.com/qualify, secret_file: /run/secrets/webhook,
#      events: [hold, roll back, refused, failed]}}
"""

GITHUB = """\
name: qualify
on:
  pull_request: {{paths: ["matrices/**", "waivers.yaml", "requirements.txt"]}}
  workflow_dispatch: {{}}
permissions: {{contents: read}}
concurrency: {{group: "qualify-${{{{ github.ref }}}}"}}
jobs:
  gate:
    name: Gate
    runs-on: [self-hosted, gpu]            # a runner of your own with the GPU that production uses
    timeout-minutes: 120
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
        with: {{persist-credentials: false}}
      - name: Install what production uses, then qualify into it
        run: |
          rm -f reports/gate.*             # of an earlier job
          if [ -f requirements.txt ]; then pip install -r requirements.txt; fi
          pip install {package}
      - name: Make evidence; what is fresh is taken over
        env:
          # Outside of the workspace; or a PostgreSQL URL from a secret.
          QUALIFY_DB: ${{{{ runner.tool_cache }}}}/qualify.db
        run: |
          made=0
          qualify run {matrix} --level full --out reports || made=$?
          case "$made" in 0 | 1 | 5) ;; *) exit "$made" ;; esac
      - name: Gate
        env:
          QUALIFY_DB: ${{{{ runner.tool_cache }}}}/qualify.db
        run: |
          qualify gate --matrix {matrix} --max-age 24h --stack here --level full --github \\
            --junit reports/gate.xml --json reports/gate.json
      - uses: actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0
        if: always()
        with: {{name: qualify, path: reports/}}
"""

GITLAB = """\
qualify:
  stage: test
  tags: [gpu]                              # a runner of your own with the GPU that production uses
  variables:
    QUALIFY_DB: $CI_PROJECT_DIR/.qualify/evidence.db
  script:
    - rm -f reports/gate.*                 # of an earlier job
    - if [ -f requirements.txt ]; then pip install -r requirements.txt; fi
    - pip install {package}
    - mkdir -p .qualify
    - made=0
    - qualify run {matrix} --level full --out reports || made=$?
    - case "$made" in 0 | 1 | 5) ;; *) exit "$made" ;; esac
    - >-
      qualify gate --matrix {matrix} --max-age 24h --stack here --level full
      --junit reports/gate.xml --json reports/gate.json
  retry:
    max: 1
    exit_codes: [4]                        # infrastructure; a verdict is never tried again
  cache: {{key: qualify, paths: [.qualify/], when: always}}
  artifacts:
    when: always
    paths: [reports/]
    reports: {{junit: reports/gate.xml}}
"""
JENKINS = """\
pipeline {{
  agent {{ label 'gpu' }}                    // an agent of your own with the GPU that production uses
  options {{
    disableConcurrentBuilds()
    timeout(time: 2, unit: 'HOURS')
  }}
  stages {{
    stage('qualify') {{
      steps {{
        sh '''
          rm -rf reports                   # of an earlier build
          # Outside of the workspace; or a PostgreSQL URL from a secret.
          export QUALIFY_DB="$HOME/.local/share/qualify/evidence.db"
          mkdir -p "$HOME/.local/share/qualify"
          if [ -f requirements.txt ]; then pip install -r requirements.txt; fi
          pip install {package}
          judge() {{
            made=0
            qualify run {matrix} --level full --out reports || made=$?
            case "$made" in 0 | 1 | 5) ;; *) return "$made" ;; esac
            qualify gate --matrix {matrix} --max-age 24h --stack here --level full \\\\
              --junit reports/gate.xml --json reports/gate.json
          }}
          code=0
          judge || code=$?
          if [ "$code" = 4 ]; then         # infrastructure; a verdict is never tried again
            code=0
            judge || code=$?
          fi
          exit "$code"
        '''
      }}
      post {{
        always {{
          junit testResults: 'reports/gate.xml', allowEmptyResults: true
          archiveArtifacts artifacts: 'reports/**', allowEmptyArchive: true
        }}
      }}
    }}
  }}
}}
"""
PIPELINES: Mapping[Ci, tuple[str, str]] = {
    "github": (".github/workflows/qualify.yml", GITHUB),
    "gitlab": (".gitlab-ci.yml", GITLAB),
    "jenkins": ("Jenkinsfile", JENKINS),
}
"""by CI server, the path of its file and the text"""
WAIVED = "waivers.yaml"
SHARED = frozenset({WAIVED, *(path for path, _ in PIPELINES.values())})
"""paths of the files that all models of a project share: where one is there already, a second model keeps it"""


def matrix_path(name: str) -> str:
    """Where the matrix lies in the project's folder."""
    return f"matrices/{name}.yaml"


def first_files(
    card: ModelCard, *, shipped: bool, dtype: Dtype, name: str, ci: Ci, canary: bool, package: str
) -> dict[str, str]:
    """The text of every file by its path in the project's folder.

    Args:
        shipped: whether the model has a card that a matrix can name.
        name: of the matrix, and the beginning of the canary's.
        package: what pip installs in CI to have qualify, quoted for a shell.
    """
    matrix = matrix_path(name)
    files = {
        matrix: first_matrix(card, shipped=shipped, dtype=dtype, name=name, waivers=f"../{WAIVED}"),
        WAIVED: WAIVERS.format(matrix=matrix),
    }
    if canary:
        files[f"canaries/{name}-nightly.yaml"] = CANARY.format(name=name, matrix=matrix)
    if ci in PIPELINES:
        path, text = PIPELINES[ci]
        quoted = package.replace("\\", r"\\") if ci == "jenkins" else package  # it stands in a string of Groovy
        files[path] = text.format(matrix=matrix, package=quoted)
    return files
