"""Pictures of tiny ISIC downloads: image, class and lesion of each, in the order of the ids."""

from fedmend.datasets.isic2018 import CLASSES

# 140 lesions of two pictures each, twenty of each class
ISIC_2018 = [(f"ISIC_{i:07d}", CLASSES[i // 2 % 7], f"HAM_{i // 2}") for i in range(280)]
ISIC_2019 = [
    ("ISIC_0000000", "NV", "HAM_1"),
    ("ISIC_0000001_downsampled", "MEL", ""),
    ("ISIC_0000002", "SCC", "BCN_7"),
    ("ISIC_0000003", "NV", "HAM_1"),
    ("ISIC_0000004", "BCC", ""),
    ("ISIC_0000005", "SCC", "BCN_7"),
]
