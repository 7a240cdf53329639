"""A drawing for each page of docs/concepts."""

from docs.generate.drawings.svg import COLOURS, FILLS, INK, Sheet

_NAMES = ("A", "B", "C", "D")


def placement() -> str:
    """Draw models of unlike popularity, and the meshes that they share."""
    sheet = Sheet(820, 300, "Placement: models by rate on the left, meshes of GPUs on the right")
    sheet.text((20, 28), "models, by rate", 13, bold=True)
    rates = ((200, "A  7B"), (110, "B  7B"), (54, "C  13B"), (30, "D  30B"), (12, "E  7B"))
    for index, (length, name) in enumerate(rates):
        y = 44 + 46 * index
        sheet.box((20, y), (length, 26), FILLS[index % 6])
        sheet.text((28 + length, y + 18), name)
    sheet.text((410, 28), "one node of 4 GPUs", 13, bold=True)
    meshes = (
        (0, 1, "unit 1", (("A", 0, 0.30), ("E", 4, 0.30)), "adbs: SMs shared"),
        (1, 1, "unit 2", (("A", 0, 0.30), ("B", 1, 0.30)), "adbs: SMs shared"),
        (2, 2, "unit 3, mesh of 2 GPUs", (("C", 2, 0.16), ("D", 3, 0.40)), "mixed jobs"),
    )
    for first, size, title, models, lane in meshes:
        x, width = 310 + 124 * first, 124 * size - 14
        sheet.box((x, 44), (width, 196), "#ffffff")
        sheet.text((x + width / 2, 62), title, 12, "middle", bold=True)
        bottom = 208.0
        for name, colour, share in models:
            height = share * 130
            bottom -= height
            sheet.labelled(
                (x + 8, bottom), (width - 16, height), (f"{name}: weights",), FILLS[colour]
            )
        sheet.box((x + 8, 72), (width - 16, bottom - 72), "#f6f7f9")
        sheet.text((x + width / 2, (72 + bottom) / 2 + 4), "KV pool, shared", 11, "middle")
        sheet.text((x + width / 2, 230), lane, 11, "middle")
    for gpu in range(4):
        sheet.labelled((310 + 124 * gpu, 250), (110, 24), (f"GPU {gpu}",))
    sheet.text(
        (20, 290), "A popular model gets replicas; a rare one shares a mesh and costs little.", 11
    )
    return sheet.svg()


def scheduling() -> str:
    """Draw the same jobs one at a time, and side by side on shares of the SMs."""
    sheet = Sheet(820, 330, "Scheduling: jobs one at a time, and side by side on shares of the SMs")
    sheet.text((20, 28), "time sharing: one job at a time on all SMs", 13, bold=True)
    row = ((90, 0, "prefill A"), (70, 1, "decode B"), (60, 2, "decode C"), (110, 3, "prefill D"))
    x = 40.0
    for length, colour, name in (
        *row,
        (70, 1, "decode B"),
        (60, 2, "decode C"),
        (60, 0, "decode A"),
    ):
        sheet.labelled((x, 40), (length - 3, 84), (name,), FILLS[colour])
        x += length
    sheet.text((x + 8, 86), "time →", 11)
    sheet.text(
        (20, 164),
        "ADBS: at most one prefill, decodes of any model on the SMs that remain",
        13,
        bold=True,
    )
    lanes = (
        (0, 0.30, ((40, 150, 0, "prefill A"), (210, 170, 3, "prefill D"), (390, 120, 1, "prefill B"))),
        (0.30, 0.40, ((40, 95, 1, "decode B"), (137, 95, 1, "decode B"), (234, 130, 0, "decode A"),
                      (366, 144, 0, "decode A"))),
        (0.70, 0.30, ((40, 120, 2, "decode C"), (162, 120, 2, "decode C"), (284, 110, 2, "decode C"),
                      (396, 114, 3, "decode D"))),
    )  # fmt: skip
    for top, share, jobs in lanes:
        for start, length, colour, name in jobs:
            corner = (start, 176 + 110 * top)
            sheet.labelled(corner, (length - 3, 110 * share - 3), (name,), FILLS[colour])
    for y, words in (
        (192, "prefill, 30 % of the SMs"),
        (228, "decode, 40 %"),
        (270, "decode, 30 %"),
    ):
        sheet.text((524, y + 4), words, 11)
    sheet.text(
        (20, 312),
        "A decode step waits for memory, a prefill for compute: side by side they use both. Where that "
        "does not pay, the unit runs mixed jobs.",
        11,
    )
    return sheet.svg()


def kv_pool() -> str:
    """Draw the pool of blocks, and a block that two sequences share."""
    sheet = Sheet(
        820, 330, "KV pool: blocks of all models in one pool, and a block lent from the right"
    )
    sheet.text((20, 28), "one pool; a block is one KV head of one layer", 13, bold=True)
    owners = "AABBACCBBBAACDDDCBBAAADD..CCBBA.AADDBB..CC.A"
    for index, owner in enumerate(owners):
        corner = (20 + 34 * (index % 11), 42 + 34 * (index // 11))
        fill = "#ffffff" if owner == "." else FILLS[_NAMES.index(owner)]
        sheet.box(corner, (30, 30), fill)
        if owner != ".":
            sheet.text((corner[0] + 15, corner[1] + 20), owner, 11, "middle")
    for index, name in enumerate(_NAMES):
        y = 204 + 24 * index
        quota = (150, 110, 80, 60)[index]
        sheet.text((20, y + 13), f"model {name}", 11)
        sheet.box((84, y), (quota, 16), "#ffffff", COLOURS[index])
        sheet.box((84, y), (quota * (0.9, 0.6, 0.95, 0.5)[index], 16), FILLS[index], COLOURS[index])
    sheet.text(
        (20, 312), "quota (outline) and use (filled); quotas move to models that run short", 11
    )
    sheet.text((440, 28), "lending inside a block", 13, bold=True)
    steps = (
        ("a batch sequence fills from the right", (None,) * 3 + (3,) * 5),
        ("an interactive one needs memory: from the left", (0,) * 3 + (3,) * 5),
        ("it grows; what it overwrites is first copied to the host", (0,) * 5 + (3,) * 3),
        ("the copy comes back before the batch sequence runs again", (3,) * 8),
    )
    for step, (words, slots) in enumerate(steps):
        y = 44 + 62 * step
        sheet.text((440, y + 12), f"{step + 1}. {words}", 11.5)
        for slot, colour in enumerate(slots):
            fill = "#ffffff" if colour is None else FILLS[colour]
            sheet.box((440 + 36 * slot, y + 20), (34, 22), fill, radius=2)
    sheet.box((740, 188), (64, 22), FILLS[3], radius=2)
    sheet.text((772, 203), "host", 11, "middle")
    sheet.arrow(((728, 199), (738, 199)))
    sheet.box((440, 292), (14, 14), FILLS[0], radius=2)
    sheet.text((460, 304), "interactive", 11)
    sheet.box((540, 292), (14, 14), FILLS[3], radius=2)
    sheet.text((560, 304), "batch: may be another model", 11)
    return sheet.svg()


def sm_shares() -> str:
    """Draw the ladder of shares and the three partitions."""
    sheet = Sheet(820, 300, "SM shares: the ladder, and the partitions mps, green and none")
    sheet.text((20, 28), "ladder: a job takes one rung", 13, bold=True)
    for row, (name, rungs) in enumerate(
        (("prefill", (0.3, 0.5, 1.0)), ("decode", (0.3, 0.5, 0.7, 1.0)))
    ):
        for step, share in enumerate(rungs):
            y = 46 + 118 * row + 26 * step
            sheet.box((84, y), (180, 20), "#ffffff")
            start = 84 if row == 0 else 84 + 180 * (1 - share)
            sheet.box((start, y), (180 * share, 20), FILLS[row])
            sheet.text((272, y + 14), f"{share:g}", 11)
        sheet.text((20, 60 + 118 * row), name, 12)
    sheet.text((20, 286), "shares of running jobs sum to at most 1", 11)
    columns = (
        (
            "mps",
            (
                "a process for a worker",
                "and share; an owner",
                "process holds weights",
                "and pool (CUDA IPC)",
            ),
        ),
        (
            "green",
            (
                "one process; threads for",
                "the workers; green",
                "contexts of the driver",
                "split the SMs in groups",
            ),
        ),
        (
            "none",
            (
                "one process, one job",
                "at a time; for one model",
                "or where nothing else",
                "is available",
            ),
        ),
    )
    for index, (name, words) in enumerate(columns):
        x = 330 + 162 * index
        sheet.box((x, 42), (150, 206), "#ffffff")
        sheet.text((x + 75, 64), f"partition: {name}", 12, "middle", bold=True)
        if name == "mps":
            sheet.labelled((x + 12, 78), (58, 34), ("prefill",), FILLS[0])
            sheet.labelled((x + 80, 78), (58, 34), ("decode",), FILLS[1])
            sheet.labelled((x + 12, 118), (126, 30), ("owner",), FILLS[2])
        elif name == "green":
            sheet.box((x + 8, 74), (134, 78), "#f6f7f9")
            sheet.labelled((x + 14, 82), (56, 30), ("prefill",), FILLS[0])
            sheet.labelled((x + 80, 82), (56, 30), ("decode",), FILLS[1])
            sheet.text((x + 75, 138), "one process", 11, "middle")
        else:
            sheet.labelled((x + 12, 82), (126, 60), ("a job",), FILLS[2])
        for row, line in enumerate(words):
            sheet.text((x + 75, 176 + 16 * row), line, 11, "middle")
    sheet.text(
        (330, 270), "On a CPU a share is a number of threads (partition threads).", 11, fill=INK
    )
    return sheet.svg()


def offline_orders() -> str:
    """Draw a prefix tree, its groups, and the two ends from which blend takes requests."""
    sheet = Sheet(
        820, 320, "Offline orders: a prefix tree, prefix groups, and blending from two ends"
    )
    sheet.text((20, 28), "prefix tree of a job", 13, bold=True)
    sheet.labelled((140, 42), (90, 26), ("system",))
    branches = ((30, "exam", 0), (150, "chat", 1), (270, "code", 2))
    for x, name, colour in branches:
        sheet.line(((185, 68), (x + 40, 100)))
        sheet.labelled((x, 100), (80, 26), (name,), FILLS[colour])
        for leaf in range(3):
            sheet.line(((x + 40, 126), (x + 10 + 30 * leaf, 158)))
            sheet.box((x - 2 + 30 * leaf, 158), (24, 20), FILLS[colour])
    sheet.text((20, 206), "exam: long prompts, short answers: compute-bound", 11)
    sheet.text((20, 224), "chat: short prompts, long answers: memory-bound", 11)
    sheet.text((20, 242), "code: in between", 11)
    sheet.text((420, 28), "batchllm: whole groups, each prefix once", 13, bold=True)
    for place, colour in enumerate((1, 1, 1, 2, 2, 2, 0, 0, 0)):
        sheet.box((420 + 40 * place, 42), (37, 24), FILLS[colour])
    sheet.text((420, 84), "most decoding first, so that the end is short", 11)
    sheet.text((420, 124), "blend: from the two ends of the density order", 13, bold=True)
    for place, colour in enumerate((0, 0, 0, 2, 2, 2, 1, 1, 1)):
        sheet.box((420 + 40 * place, 138), (37, 24), FILLS[colour])
    sheet.text((420, 180), "compute-bound", 11)
    sheet.text((778, 180), "memory-bound", 11, "end")
    sheet.arrow(((470, 192), (470, 216)))
    sheet.arrow(((730, 192), (730, 216)))
    for row, (name, colours) in enumerate((("prefill", (0, 0, 0, 2)), ("decode", (1, 1, 1, 2)))):
        sheet.text((420, 240 + 30 * row), name, 11)
        for place, colour in enumerate(colours):
            sheet.box((476 + 76 * place, 224 + 30 * row), (72, 24), FILLS[colour])
    sheet.text((420, 302), "both resources are busy until the job ends", 11)
    return sheet.svg()
