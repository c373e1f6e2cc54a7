"""Precomputed data on disk: sealed LMDB shards with an index beside each, commit records, a manifest written last.

`_format` is what lies on disk, `_items` what goes in, `build` makes it, `read` opens it. Nothing here knows fastai.
"""
