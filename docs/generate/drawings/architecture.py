"""The architecture: where a request goes, and who decides what."""

from docs.generate.drawings.svg import FILLS, Sheet


def architecture() -> str:
    """Draw the way of a request, with planner, batch service and simulator beside it."""
    sheet = Sheet(860, 392, "Architecture: clients, ingress, units with workers, planner, batches")
    blue, orange, green, pink, yellow, _ = FILLS
    sheet.labelled((20, 30), (150, 50), ("OpenAI clients", "HTTP, SSE"))
    sheet.labelled((20, 150), (150, 66), ("muxcluster.yaml", "models, rates, SLO,", "hardware"))
    sheet.labelled((20, 290), (150, 50), ("batch files", "OpenAI's format"))
    sheet.labelled(
        (230, 22), (180, 66), ("ingress, one a node", "checks, tokenises,", "routes"), blue
    )
    sheet.labelled(
        (230, 150), (180, 66), ("planner: place", "which models share", "which GPUs"), yellow
    )
    sheet.labelled(
        (230, 282), (180, 66), ("batch service", "orders a job, keeps", "every answer"), pink
    )
    sheet.labelled((230, 238), (180, 26), ("controller (Ray)",), yellow)
    sheet.box((480, 22), (360, 326), "#ffffff")
    sheet.text((660, 44), "unit: one for each mesh of GPUs", 13, "middle", bold=True)
    sheet.labelled(
        (500, 58),
        (320, 66),
        ("scheduler", "which model and phase on which SMs,", "which requests in the job"),
        green,
    )
    sheet.labelled((500, 150), (150, 50), ("prefill worker", "SM share p"), orange)
    sheet.labelled((670, 150), (150, 50), ("decode worker", "SM share d"), orange)
    sheet.labelled(
        (500, 226),
        (320, 50),
        ("one KV pool for all models", "blocks of one KV head of one layer"),
        blue,
    )
    sheet.labelled((500, 288), (320, 44), ("weights of the unit's models, once",), blue)
    sheet.arrow(((170, 48), (228, 48)))
    sheet.arrow(((228, 66), (172, 66)))
    sheet.arrow(((410, 74), (498, 74)))
    sheet.text((454, 66), "zmq", 11, "middle")
    sheet.arrow(((170, 183), (228, 183)))
    sheet.arrow(((320, 216), (320, 236)))
    sheet.arrow(((410, 251), (478, 251)))
    sheet.text((444, 243), "starts", 11, "middle")
    sheet.arrow(((170, 315), (228, 315)))
    sheet.arrow(((410, 300), (446, 300), (446, 104), (498, 104)))
    for x in (575, 745):
        sheet.arrow(((x, 124), (x, 148)))
        sheet.arrow(((x, 200), (x, 224)))
    sheet.text(
        (430, 376),
        "simulate: the same scheduler and KV bookkeeping on a virtual clock, jobs timed by the cost model",
        12,
        "middle",
    )
    return sheet.svg()
