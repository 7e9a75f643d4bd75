"""A scripted stand-in for the model of Claude Code: serves POST /v1/messages on localhost, as mockmodel does for Codex."""
import json

import mockmodel


class Request(mockmodel.Request):
    """One POST /v1/messages of the client, waiting for its answer. Requests without tools, as for a title, are answered at once."""

    def __init__(self, body, headers):
        super().__init__(body, headers)
        if not self.tools():
            self.reply([{"type": "text", "text": "a title"}])

    def tools(self):
        return [tool["name"] for tool in self.body.get("tools", [])]

    def output(self, call_id):
        """The content of the tool result with this id, or None."""
        for message in self.body["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part.get("tool_use_id") == call_id:
                    return part["content"]
        return None


class Messages(mockmodel.MockModel):
    path = "/messages"
    request = Request

    def events(self, name, request, items):
        reason = "tool_use" if any(item["type"] == "tool_use" for item in items) else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": name, "type": "message", "role": "assistant", "model": request.body["model"], "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        events = [{"type": "message_start", "message": message}]
        for index, item in enumerate(items):
            if item["type"] == "text":
                begun, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": item["text"]}
            else:
                begun, delta = {**item, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(item["input"])}
            events += [
                {"type": "content_block_start", "index": index, "content_block": begun},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        return events + [{"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}, {"type": "message_stop"}]
