"""Storages of tests that hand out ranges: what is read into memory comes as one of those."""


class ByRanges:
    def read_into(self, path, offset, into):
        return scatter(self.get_range(path, offset, sum(map(len, into))), into)


def scatter(data, into):
    start = 0
    for view in into:
        piece = data[start : start + len(view)]
        view[: len(piece)] = piece
        start += len(piece)
    return len(data)
