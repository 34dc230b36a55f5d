"""The clock cycles per element of elementwise ops, as XLA measured them on a GPU of each compute capability.

From XLA's `hlo_op_profiles_data.h`. A capability without a profile uses that of 8.6; an op without a number takes 3 cycles.
"""

from __future__ import annotations

from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.target import TargetSpec

_DEFAULT_CYCLES = 3
_DEFAULT_PROFILE = 86
DEFAULT_PROFILE = divmod(_DEFAULT_PROFILE, 10)
"""The capability, (major, minor), whose cycles serve for others."""

# Capability -> a line per element type: the type, then op=cycles.
_PROFILES: dict[int, str] = {
    60: """
        c128 add=20 atan2=22278 cosine=4302 divide=3194 exponential=3665 exponential-minus-one=3656 log=2057 log-plus-one=1806
        c128 multiply=65 power=17893 rsqrt=6135 sine=4169 sqrt=8595 subtract=20 tanh=5294
        c64 add=20 atan2=16282 cosine=1128 divide=760 exponential=1021 exponential-minus-one=991 log=1107 log-plus-one=994
        c64 multiply=65 power=8335 rsqrt=2158 sine=1139 sqrt=2934 subtract=20 tanh=1883
        f16 add=11 atan2=675 cbrt=233 cosine=532 divide=68 exponential=142 exponential-minus-one=364 log=325 log-plus-one=373
        f16 multiply=11 power=1012 rsqrt=100 sine=497 sqrt=100 subtract=11 tanh=458
        f32 add=11 atan2=663 cbrt=213 cosine=494 divide=35 exponential=109 exponential-minus-one=337 log=284 log-plus-one=328
        f32 multiply=11 power=988 rsqrt=71 sine=473 sqrt=71 subtract=11 tanh=426
        f64 add=14 atan2=1169 cbrt=645 cosine=1427 divide=565 exponential=405 exponential-minus-one=544 log=441 log-plus-one=784
        f64 multiply=14 power=2682 rsqrt=355 sine=1640 sqrt=417 subtract=14 tanh=473
        s16 add=2 divide=420 multiply=5 power=216
        s32 add=2 divide=444 multiply=14 power=417
        s64 add=2 divide=1018 multiply=82 power=1569
        s8 add=2 divide=426 multiply=5 power=216
        u16 add=2 divide=307 multiply=5 power=216
        u32 add=2 divide=189 multiply=14 power=420
        u64 add=2 divide=888 multiply=79 power=1548
        u8 add=2 divide=299 multiply=5 power=213
    """,
    70: """
        c128 add=15 atan2=15355 cosine=1808 divide=2423 exponential=1487 exponential-minus-one=1334 log=1805 log-plus-one=1618
        c128 multiply=45 power=9810 rsqrt=7261 sine=2013 sqrt=8237 subtract=15 tanh=6343
        c64 add=12 atan2=8151 cosine=780 divide=480 exponential=722 exponential-minus-one=703 log=758 log-plus-one=654
        c64 multiply=42 power=8105 rsqrt=3261 sine=789 sqrt=6282 subtract=12 tanh=1924
        f16 add=9 atan2=449 cbrt=226 cosine=425 divide=73 exponential=128 exponential-minus-one=241 log=232 log-plus-one=266
        f16 multiply=9 power=709 rsqrt=122 sine=425 sqrt=122 subtract=9 tanh=284
        f32 add=6 atan2=406 cbrt=189 cosine=373 divide=21 exponential=79 exponential-minus-one=205 log=180 log-plus-one=217
        f32 multiply=6 power=673 rsqrt=76 sine=373 sqrt=76 subtract=6 tanh=269
        f64 add=15 atan2=973 cbrt=599 cosine=624 divide=501 exponential=358 exponential-minus-one=410 log=318 log-plus-one=633
        f64 multiply=15 power=2099 rsqrt=263 sine=618 sqrt=324 subtract=15 tanh=406
        s16 divide=345 multiply=9 power=183
        s32 divide=287 multiply=3 power=104
        s64 add=3 divide=685 multiply=12 power=376
        s8 divide=336 multiply=9 power=189
        u16 divide=293 multiply=9 power=183
        u32 divide=113 multiply=3 power=104
        u64 add=3 divide=599 multiply=12 power=376
        u8 divide=293 multiply=9 power=189
    """,
    75: """
        c128 add=95 atan2=38206 cosine=6474 divide=8040 exponential=4962 exponential-minus-one=4037 log=7286 log-plus-one=6848
        c128 multiply=273 power=18550 rsqrt=10748 sine=5391 sqrt=15981 subtract=97 tanh=9653
        c64 atan2=4847 cosine=1702 exponential=1503 exponential-minus-one=1474 log=835 log-plus-one=737 power=3219 rsqrt=2232
        c64 sine=1632 sqrt=2989 tanh=2263
        f16 atan2=414 cbrt=792 cosine=815 divide=74 exponential=132 exponential-minus-one=342 log=239 log-plus-one=239
        f16 logistic=262 power=1120 rsqrt=126 sine=794 sqrt=123 tanh=175
        f32 atan2=414 cbrt=783 cosine=737 exponential=83 exponential-minus-one=319 log=201 log-plus-one=218 logistic=181
        f32 power=1085 rsqrt=74 sine=717 sqrt=74 tanh=167
        f64 add=95 atan2=3744 cbrt=6494 cosine=1800 divide=1915 exponential=1630 exponential-minus-one=1929 log=596
        f64 log-plus-one=1774 logistic=2430 multiply=95 power=5538 rsqrt=705 sine=1805 sqrt=984 subtract=95 tanh=1535
        s16 divide=357 power=339
        s32 divide=296
        s64 divide=979 power=495
        s8 divide=360 power=336
        u16 divide=290 power=336
        u32 divide=118
        u64 divide=812 power=515
        u8 divide=293 power=334
    """,
    80: """
        c128 atan2=13564 cosine=2309 divide=3037 log=2371 log-plus-one=2405 power=6054 rsqrt=3945 sine=2284 sqrt=5304 tanh=3618
        c64 atan2=6618 log=1037 log-plus-one=1029 power=4131
        f16 cbrt=1195 log=321 log-plus-one=346 sqrt=124 tanh=499
        f32 log=259 power=1221 tanh=504
        f64 atan2=1080 cbrt=1638 divide=831 exponential-minus-one=572 log=699 log-plus-one=1223 power=1861 rsqrt=329 sine=597
        f64 sqrt=397 tanh=733
        s16 divide=468
        s64 divide=1094
        s8 divide=417
        u16 divide=391 power=454
        u64 divide=908 power=744
        u8 divide=420 power=417
    """,
    86: """
        c128 add=97 atan2=39027 cosine=6613 divide=7941 exponential=4028 exponential-minus-one=4161 log=7599 log-plus-one=6962
        c128 multiply=270 power=18205 rsqrt=11318 sine=5878 sqrt=15606 subtract=97 tanh=9939
        c64 atan2=5353 divide=687 exponential=1360 exponential-minus-one=1400 log=950 log-plus-one=842 power=3351 rsqrt=2383
        c64 sqrt=3193
        f16 atan2=482 cbrt=925 cosine=691 exponential=108 exponential-minus-one=396 log=266 log-plus-one=284 logistic=226
        f16 power=975 rsqrt=97 sqrt=97 tanh=212
        f32 atan2=486 cbrt=867 cosine=662 exponential=86 exponential-minus-one=381 log=244 log-plus-one=262 logistic=176
        f32 power=925 rsqrt=75 sine=662 sqrt=75 tanh=190
        f64 add=97 atan2=3747 cbrt=6339 cosine=1717 divide=2016 exponential=1652 exponential-minus-one=1900 log=608
        f64 log-plus-one=2073 logistic=2412 multiply=97 power=5511 rsqrt=698 sine=1789 sqrt=986 subtract=97 tanh=1609
        s16 divide=367 power=396
        s32 divide=306
        s64 divide=918 power=601
        s8 divide=370 power=392
        u16 divide=302 power=399
        u32 divide=115
        u64 divide=838 power=604
        u8 divide=306 power=388
    """,
    90: """
        c128 add=15 atan2=13131 cosine=1750 divide=2280 exponential=1342 exponential-minus-one=1275 log=2455 log-plus-one=2403
        c128 multiply=39 power=8363 rsqrt=5500 sine=1999 sqrt=6636 subtract=15 tanh=4613
        c64 add=7 atan2=6462 cosine=2415 divide=498 exponential=641 exponential-minus-one=2055 log=756 log-plus-one=633
        c64 multiply=79 power=5532 rsqrt=3148 sine=2324 sqrt=4344 subtract=7 tanh=2379
        f16 add=7 atan2=451 cbrt=201 cosine=997 divide=43 exponential=102 exponential-minus-one=217 log=182 log-plus-one=245
        f16 multiply=7 power=526 rsqrt=95 sine=993 sqrt=95 subtract=7 tanh=502
        f32 add=7 atan2=431 cbrt=178 cosine=978 divide=19 exponential=79 exponential-minus-one=190 log=166 log-plus-one=229
        f32 multiply=3 power=510 rsqrt=75 sine=958 sqrt=75 subtract=7 tanh=467
        f64 add=15 atan2=930 cbrt=586 cosine=558 divide=526 exponential=376 exponential-minus-one=712 log=815 log-plus-one=1259
        f64 multiply=15 power=2205 rsqrt=277 sine=554 sqrt=332 subtract=15 tanh=431
        s16 divide=364 multiply=7 power=122
        s32 divide=297 multiply=3 power=71
        s64 divide=685 multiply=11 power=253
        s8 divide=356 multiply=7 power=122
        u16 divide=304 multiply=7 power=126
        u32 divide=122 multiply=3 power=71
        u64 divide=629 multiply=11 power=253
        u8 divide=300 multiply=7 power=122
    """,
    100: """
        c128 add=15 atan2=13310 cosine=1862 divide=2338 exponential=1375 exponential-minus-one=1513 log=3859 log-plus-one=5985
        c128 logistic=5973 multiply=39 power=8685 rsqrt=5792 sine=1878 sqrt=6602 subtract=15 tanh=4519
        c64 add=11 atan2=6346 cosine=2511 divide=330 exponential=695 exponential-minus-one=864 log=703 log-plus-one=664
        c64 logistic=2314 multiply=31 power=5285 rsqrt=2507 sine=2440 sqrt=4271 subtract=11 tanh=2444
        f16 add=7 atan2=400 cbrt=200 cosine=1017 divide=43 erf=161 exponential=106 exponential-minus-one=216 log=102
        f16 log-plus-one=216 logistic=220 multiply=7 power=451 rsqrt=98 sine=1006 sqrt=98 subtract=7 tanh=141
        f32 add=7 atan2=373 cbrt=180 cosine=1002 divide=23 erf=161 exponential=82 exponential-minus-one=196 log=165
        f32 log-plus-one=200 logistic=176 multiply=7 power=463 rsqrt=74 sine=990 sqrt=74 subtract=7 tanh=137
        f64 add=15 atan2=829 cbrt=569 cosine=538 divide=483 erf=746 exponential=314 exponential-minus-one=385 log=844
        f64 log-plus-one=793 logistic=428 multiply=15 power=1796 rsqrt=231 sine=534 sqrt=294 subtract=15 tanh=459
        s16 divide=369 multiply=7 power=145
        s32 divide=306 multiply=3 power=172
        s64 divide=730 multiply=11 power=298
        s8 divide=373 multiply=7 power=153
        u16 divide=302 multiply=7 power=149
        u32 divide=125 multiply=3 power=172
        u64 divide=628 multiply=11 power=298
        u8 divide=302 multiply=7 power=153
    """,
    103: """
        c128 add=277 atan2=63780 cosine=10312 divide=14299 exponential=11749 exponential-minus-one=10076 log=14022
        c128 log-plus-one=16025 logistic=27390 multiply=832 rsqrt=18369 sine=10399 sqrt=29046 subtract=285 tan=16137 tanh=16191
        c64 add=12 atan2=6582 cosine=761 divide=335 exponential=823 exponential-minus-one=894 log=695 log-plus-one=741
        c64 logistic=2852 multiply=33 rsqrt=2976 sine=790 sqrt=4375 subtract=12 tan=1771 tanh=1668
        f16 add=8 atan2=451 cbrt=198 cosine=442 divide=49 erf=235 exponential=111 exponential-minus-one=186 log=120
        f16 log-plus-one=219 logistic=244 multiply=8 round-nearest-afz=66 round-nearest-even=62 rsqrt=111 sine=372 sqrt=111
        f16 subtract=8 tan=372 tanh=149
        f32 add=8 atan2=438 cbrt=173 cosine=347 divide=24 erf=190 exponential=86 exponential-minus-one=144 log=186
        f32 log-plus-one=211 logistic=202 multiply=8 round-nearest-afz=57 round-nearest-even=33 rsqrt=78 sine=376 sqrt=78
        f32 subtract=8 tan=405 tanh=140
        f64 add=136 atan2=5464 cbrt=2248 cosine=2782 divide=2028 erf=6276 exponential=2322 exponential-minus-one=2802 log=488
        f64 log-plus-one=3369 logistic=3142 multiply=132 round-nearest-afz=364 round-nearest-even=136 rsqrt=939 sine=2761
        f64 sqrt=1465 subtract=132 tan=3502 tanh=2094
        s16 add=4 divide=380 multiply=8 popcnt=37 subtract=4
        s32 add=4 divide=302 multiply=8 popcnt=37 subtract=4
        s64 add=12 divide=1068 multiply=12 popcnt=37 subtract=12
        s8 add=4 divide=372 multiply=8 popcnt=37 subtract=4
        u16 add=4 divide=293 multiply=8 popcnt=37 subtract=4
        u32 add=4 divide=136 multiply=8 popcnt=37 subtract=4
        u64 add=12 divide=890 multiply=12 popcnt=33 subtract=12
        u8 add=4 divide=298 multiply=8 popcnt=37 subtract=4
    """,
}


def _read(text: str) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for line in text.split("\n"):
        element_type, *numbers = line.split() or [""]
        for number in numbers:
            opcode, _, cycles = number.partition("=")
            found[opcode, element_type] = int(cycles)
    return found


_CYCLES = {capability: _read(text) for capability, text in _PROFILES.items()}


def cycles_per_element(opcode: Opcode, element_type: str, target: TargetSpec) -> int:
    """Return the cycles of one element of an elementwise op whose result has this type."""
    profile = _CYCLES.get(target.sm, _CYCLES[_DEFAULT_PROFILE])
    return profile.get((opcode, element_type), _DEFAULT_CYCLES)
