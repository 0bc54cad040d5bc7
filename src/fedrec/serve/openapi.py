"""What the service says about itself: an OpenAPI document, and a page that shows it without any other server."""

from __future__ import annotations

from typing import Any

from fedrec import __version__


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedrec", "version": __version__, "description": "Recommendations of a fedrec model."},
        "paths": {
            "/health": {"get": _operation("health", "Whether the model is loaded, and which one it is", [], "Health")},
            "/recommendations/{user}": {
                "get": _operation(
                    "recommendations",
                    "Recommendations for a user, without items they already have",
                    [_in_path("user"), LENGTH],
                    "Recommendations",
                )
            },
            "/similar/{item}": {
                "get": _operation("similar", "Items similar to an item", [_in_path("item"), LENGTH], "Similar")
            },
            "/fold-in": {
                "post": _operation("foldIn", "Recommendations for a new user, from the items they have", [], "FoldedIn")
                | {"requestBody": HISTORY}
            },
        },
        "components": {"schemas": SCHEMAS},
    }


def _operation(name: str, summary: str, parameters: list[dict[str, Any]], answer: str) -> dict[str, Any]:
    wrong = {"description": "What is wrong", "content": _json("Error")}
    fault = {"description": "The service itself failed", "content": _json("Error")}
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": summary, "content": _json(answer)},
            "400": wrong,
            "404": wrong,
            "500": fault,
        },
    }


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _in_path(name: str) -> dict[str, Any]:
    text = f"Original id of the {name}"
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": text}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
ID = {"type": ["string", "integer"]}
LENGTH = {
    "name": "k",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "default": 10},
    "description": "Length of the list",
}
LINES = {"type": "array", "items": {"$ref": "#/components/schemas/Line"}}
SERVED = {"type": "string", "enum": ["trained", "folded in", "popularity"]}
HISTORY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": _object(["items"], items={"type": "array", "items": ID, "description": "Oldest first"}, k=WHOLE)
        }
    },
}
SCHEMAS: dict[str, Any] = {
    "Line": _object(["item", "rank", "score"], item=ID, rank=WHOLE, score=NUMBER, title={"type": ["string", "null"]}),
    "Health": _object(["status", "method", "users", "items"], status=TEXT, method=TEXT, users=WHOLE, items=WHOLE),
    "Recommendations": _object(["user", "served", "items"], user=ID, served=SERVED, items=LINES),
    "Similar": _object(["item", "items"], item=ID, items=LINES),
    "FoldedIn": _object(["items", "unknown"], items=LINES, unknown={"type": "array", "items": TEXT}),
    "Error": _object(["error"], error=TEXT),
}

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fedrec</title>
<meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.5 }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
code { background: color-mix(in srgb, currentColor 10%, transparent); padding: .1em .3em; border-radius: .2em }
section { border-top: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: .5rem 0 }
</style></head><body>
<h1>fedrec</h1>
<p id="about">Recommendations of one model. <a href="openapi.json">openapi.json</a> is for programs.</p>
<main></main>
<script>
const add = (parent, kind, text) => {
  const made = document.createElement(kind); made.textContent = text; parent.append(made); return made;
};
fetch("openapi.json").then(r => r.json()).then(api => {
  for (const [path, verbs] of Object.entries(api.paths)) for (const [verb, what] of Object.entries(verbs)) {
    const part = add(document.querySelector("main"), "section", "");
    add(add(part, "h2", ""), "code", verb.toUpperCase() + " " + path);
    add(part, "p", what.summary);
    for (const one of what.parameters) add(part, "p", one.name + ": " + one.description);
    if (what.requestBody) add(add(part, "p", "body: "), "code", '{"items": ["a", "b"], "k": 10}');
  }
});
fetch("health").then(r => r.json()).then(it => add(document.querySelector("#about"), "span",
  " This one is " + it.method + " with " + it.users + " users and " + it.items + " items."));
</script></body></html>
"""
