#!/usr/bin/env bash
# oss-harmony 0.0.11 (the prompt format of gpt-oss), seen on 2026-11-29: the description of a function is written as comments, line by
# line. Of an argument's description only the first line is. The other lines stand bare between the arguments of the TypeScript type:
#
#     // The city,            <- first line of the argument's description
#     as people call it.      <- second line: no comment, and no type
#     city: string,
#
# Both texts are valid JSON schema, and descriptions of several lines are common in tools that are generated from docstrings. So the
# model reads a type that is no TypeScript, and who counts a prompt's tokens by "comment each line" is off by two or more a line.
# Seen: 1 bare line with one argument of two lines, 0 bare lines of the function's own two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check oss-harmony==0.0.11
"$folder/env/bin/python" - <<'PY'
from importlib.metadata import version

from openai_harmony import (
    Conversation,
    DeveloperContent,
    HarmonyEncodingName,
    Message,
    Role,
    ToolDescription,
    load_harmony_encoding,
)

city = {"type": "string", "description": "The city,\nas people call it."}
tool = ToolDescription.new(
    "weather",
    "Tells the weather.\nOf one day.",
    parameters={"type": "object", "properties": {"city": city}, "required": ["city"]},
)
content = DeveloperContent.new().with_function_tools([tool])
encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
tokens = encoding.render_conversation(Conversation.from_messages([Message.from_role_and_content(Role.DEVELOPER, content)]))
lines = encoding.decode(tokens).splitlines()
print("oss-harmony", version("oss-harmony"))
print("\n".join(lines))
assert "// Of one day." in lines, "the function's second line is no comment any more"
assert "// The city," in lines
assert "as people call it." in lines and "// as people call it." not in lines, "the behaviour has changed"
PY
