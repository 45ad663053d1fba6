#!/usr/bin/env bash
# AIPerf 0.13.0, seen on 2026-12-01: `aiperf synthesize agentic-code` and the same with `--config default` write folders with the same
# name, default_<sessions>s_seed<seed>_<time>, and a manifest with the same `config_name`. They are different workloads:
#  - without --config: median 1,800 new tokens a turn, replies of 300 tokens in the median, 50 groups that share 20,000 tokens;
#  - with --config default: 6,000 new tokens a turn, replies of 1,000, no shared tokens of a group, prompts of up to 167,000 tokens.
# So a result on "agentic-code, default, seed 42" does not name its workload. Give the parameters of the manifest with it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check aiperf==0.13.0
for config in "" "--config default"; do
  # shellcheck disable=SC2086  # two words
  "$folder/env/bin/aiperf" synthesize agentic-code --num-sessions 50 --output "$folder/of-${config##* }" $config >/dev/null
done
"$folder/env/bin/python" - "$folder" <<'PY'
import json
import re
import sys
from pathlib import Path

found = {}
for made in sorted(Path(sys.argv[1]).glob("of-*/*/manifest.json")):
    manifest = json.loads(made.read_text())
    parameters = manifest["generation_params"]
    name = re.sub(r"_\d{8}-\d{6}$", "", made.parent.name)
    found[made.parents[1].name] = (name, manifest["config_name"], parameters["new_tokens_per_turn"]["median"])
    print(made.parents[1].name, "->", *found[made.parents[1].name])
plain, named = found["of-"], found["of-default"]
assert plain[:2] == named[:2] == ("default_50s_seed42", "default"), "the behaviour has changed"
assert plain[2] == 1800 and named[2] == 6000
PY
