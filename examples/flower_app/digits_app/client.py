"""The client: two functions of its own, and one call that makes it rational."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import model
from feduca.flower import rational

RECIPE = {"mechanism": {"name": "feduca"}, "participation": {"rule": "utility"}}  # the server's is the same

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y, x_val, y_val = model.data(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    epochs, lr = int(context.run_config["epochs"]), float(context.run_config["lr"])

    def fit(arrays: ArrayRecord, config: ConfigRecord) -> ArrayRecord:
        return ArrayRecord(model.train(arrays.to_numpy_ndarrays(), x, y, epochs, lr))

    def score(arrays: ArrayRecord) -> tuple[float, float]:
        return model.test(arrays.to_numpy_ndarrays(), x_val, y_val)

    if context.run_config["strategy"] == "feduca":
        return rational(message, context, fit=fit, score=score, examples=len(y), recipe=RECIPE)
    arrays = fit(message.content["arrays"], message.content["config"])
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
