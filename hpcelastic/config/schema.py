"""The JSON Schema of a job file, for completion in editors. ``python -m hpcelastic.config.schema`` prints it.

It is generated from the types of the validation, and extended by the short forms that the loader accepts.
"""

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hpcelastic.config.job import NODES
from hpcelastic.config.validation import adapter

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: a title would repeat the key."""
        return False


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file, draft 2020-12."""
    schema = _widened(adapter().json_schema(schema_generator=_Untitled))
    nodes = schema["properties"]["nodes"]
    short = [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{NODES.pattern}$"}]
    nodes["anyOf"] = [*short, {"$ref": nodes.pop("$ref")}]
    schema["properties"]["environment"]["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    return {"$schema": DIALECT, **schema, "title": "hpcelastic job"}


def _widened(schema: Any) -> Any:
    """Allow a number wherever text is allowed: the loader reads it as its source text."""
    if isinstance(schema, list):
        return [_widened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and "enum" not in schema and "const" not in schema:
        return {**schema, "type": ["string", "number"]}
    return {key: _widened(item) for key, item in schema.items()}


if __name__ == "__main__":
    print(json.dumps(job_schema(), indent=2))
