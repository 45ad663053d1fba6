"""Word lists of the vetoes, English and Chinese: opposites, negators, function words and synonyms.

A missing pair of opposites matters little, because a substituted word is a veto anyway. A missing synonym costs hits and never
causes a wrong one.
"""

from collections.abc import Iterable, Mapping
from typing import Final


def _pairs(*lines: str) -> frozenset[tuple[str, str]]:
    found = [tuple(pair.split("/")) for line in lines for pair in line.split()]
    return frozenset({(a, b) for a, b in found} | {(b, a) for a, b in found})


def _groups(*lines: str) -> Mapping[str, str]:
    """Return each word's group: its first word."""
    return {word: group.split("/")[0] for line in lines for group in line.split() for word in group.split("/")}


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


def _in_order(*lines: str) -> tuple[str, ...]:
    return tuple(word for line in lines for word in line.split())


OPPOSITES: Final = _pairs(
    "on/off in/out up/down into/from to/from inside/outside above/below over/under before/after with/without left/right",
    "open/close open/shut start/stop begin/end start/end start/finish enable/disable activate/deactivate increase/decrease",
    "raise/lower add/remove add/delete create/delete create/destroy insert/delete install/remove attach/detach push/pull",
    "buy/sell lend/borrow give/take send/receive import/export upload/download login/logout lock/unlock encrypt/decrypt",
    "encode/decode compress/decompress read/write accept/reject accept/refuse accept/decline allow/deny allow/forbid",
    "allow/block",
    "allow/prevent permit/forbid include/exclude connect/disconnect mount/unmount pack/unpack subscribe/unsubscribe win/lose",
    "gain/lose pass/fail succeed/fail love/hate like/dislike agree/disagree arrive/depart arrive/leave enter/exit",
    "enter/leave",
    "come/go live/die sleep/wake freeze/melt heat/cool expand/shrink expand/collapse maximize/minimize maximum/minimum",
    "max/min",
    "show/hide save/discard keep/discard approve/reject hire/fire strengthen/weaken attack/defend",
    "more/less more/fewer most/least many/few much/little all/none always/never everything/nothing everyone/nobody any/no",
    "big/small large/small long/short tall/short high/low wide/narrow thick/thin heavy/light fast/slow quick/slow early/late",
    "hot/cold warm/cool wet/dry hard/soft hard/easy difficult/easy strong/weak loud/quiet bright/dark rich/poor",
    "cheap/expensive",
    "old/new old/young good/bad good/evil better/worse best/worst right/wrong true/false correct/wrong correct/incorrect",
    "safe/dangerous safe/unsafe healthy/sick full/empty alive/dead clean/dirty public/private internal/external",
    "positive/negative",
    "male/female man/woman men/women boy/girl husband/wife father/mother son/daughter brother/sister he/she his/her him/her",
    "first/last next/previous front/back top/bottom north/south east/west day/night morning/evening summer/winter",
    "today/tomorrow",
    "yesterday/tomorrow today/yesterday legal/illegal possible/impossible visible/invisible horizontal/vertical",
    "ascending/descending",
    "asc/desc row/column client/server sync/async synchronous/asynchronous deposit/withdraw credit/debit profit/loss",
    "asset/liability",
    "advantage/disadvantage advantages/disadvantages pros/cons benefit/harm benefits/risks cause/effect question/answer",
    "input/output source/target source/destination sender/receiver buyer/seller employer/employee teacher/student",
    "parent/child",
    "upgrade/downgrade increase/reduce grow/shrink rise/fall import/export inhale/exhale acid/base cat/dog my/your i/you",
    "i/he i/she i/they me/you me/him me/her me/them my/his my/her my/their",
    "we/they",
    "can/can't is/isn't do/don't does/doesn't will/won't should/shouldn't",
)
OPPOSITES_ZH: Final = _pairs(
    "开/关 打开/关闭 开启/关闭 启用/禁用 启动/停止 开始/结束 开始/停止 上/下 左/右 前/后 里/外 内/外 进/出 来/去",
    "上升/下降 增加/减少 提高/降低 增大/减小",
    "加/减 乘/除 大/小 多/少 高/低 长/短 快/慢 早/晚 新/旧 好/坏 真/假 对/错 冷/热 轻/重 粗/细 宽/窄 深/浅 强/弱 胖/瘦",
    "软/硬 干/湿 明/暗 贵/便宜 难/易 难/容易",
    "买/卖 借/还 收/发 送/收 存/取 输/赢 得/失 升/降 涨/跌 推/拉 增/删 添加/删除 安装/卸载 登录/退出 上传/下载 导入/导出",
    "加密/解密 压缩/解压 允许/禁止 接受/拒绝",
    "包括/排除 连接/断开 锁定/解锁 绑定/解绑 绑定/解除 订阅/退订 关注/取消 显示/隐藏 保留/删除 同意/拒绝 支持/反对",
    "喜欢/讨厌 成功/失败 安全/危险 合法/非法 可能/不可能",
    "男/女 父/母 爸爸/妈妈 儿子/女儿 哥哥/姐姐 弟弟/妹妹 丈夫/妻子 老公/老婆 公/母 东/西 南/北 白天/晚上 早上/晚上",
    "今天/明天 昨天/明天 今天/昨天 去年/今年 今年/明年 夏天/冬天",
    "最大/最小 最多/最少 最高/最低 最好/最差 第一/最后 优点/缺点 利/弊 好处/坏处 原因/结果 之前/之后 以前/以后 以上/以下",
    "以内/以外 有/无 有/没有 是/不是 能/不能 会/不会",
    "正/负 正/反 阴/阳 单/双 奇/偶 公开/私有 内部/外部 输入/输出 同步/异步 升级/降级 充值/提现 收入/支出 盈利/亏损 猫/狗",
    "我/你 您/我 他/她 买家/卖家 老师/学生",
)
PREFIXES: Final = ("un", "in", "im", "ir", "il", "dis", "non", "de", "mis", "anti")
"""English prefixes that turn a word into its opposite."""

NEGATORS: Final = _words(
    "not no never without none nobody nothing nowhere neither nor cannot cant wont dont doesnt didnt isnt arent wasnt werent",
    "shouldnt wouldnt couldnt mustnt havent hasnt hadnt aint unable except excluding hardly barely lack lacks lacking avoid",
)
NEGATORS_ZH: Final = "不没無无沒非未别別勿莫否"
NEUTRAL_ZH: Final = _in_order(
    "是不是 能不能 会不会 有没有 可不可以 要不要 好不好 行不行 对不对 该不该 是否 能否 可否 不同 不过 不仅 不但 不管 不论 "
    "无论 差不多 对不起 不好意思 "
    "非常 除非 未来 别人 别的 特别 区别 分别 级别 性别 识别 个别 类别 辨别 非洲 否则 没关系 不锈钢 无线 无锡 南非 莫斯科"
)
"""Words in which those characters do not negate."""

FUNCTION: Final = _words(
    "a an the this that these those it its there here of to in on at by for from with into as and or but so if than then",
    "is are was were be been being am do does did doing have has had having can could will would shall should may might must",
    "i me my you your we us our they them their he she him her what which who whom whose when where why how please pls thanks",
    "thank hi hello hey tell me let know explain give show want wanted need like just really actually exactly very also too",
    "kindly question help some any one ones way ways get about s t re ve ll d m im id ive youre whats hows dont doesnt isnt",
)
"""Words that may be replaced without changing the question."""
FUNCTION_ZH: Final = frozenset(
    "的了着吗呢吧啊呀么嘛哦请问我你您想要知道一下个这那是有在和与及以能可会怎样如何什为啥哪该得地之于把被就都也还帮告诉给需不没"
)

SYNONYMS: Final = _groups(
    "fix/repair/solve/resolve big/large small/little begin/start/commence buy/purchase help/assist/aid error/mistake",
    "quick/fast/rapid make/create/build/produce method/approach technique/procedure difference/distinction cost/price",
    "movie/film car/automobile job/occupation picture/image/photo child/kid children/kids answer/reply/response",
    "show/display choose/select/pick end/finish remove/delete/erase use/utilize/utilise employ/apply improve/enhance/better",
    "reduce/decrease/lower increase/raise get/obtain/acquire explain/describe/clarify important/essential/crucial",
    "simple/easy hard/difficult example/sample/instance list/enumerate write/compose advantage/benefit advantages/benefits",
    "drawback/disadvantage drawbacks/disadvantages meaning/definition/significance function/method couch/sofa",
    "email/e-mail/mail",
    "need/require/want various/different/several find/locate/discover best/top/greatest main/primary/principal major/key",
    "summary/overview summarize/summarise purpose/goal/aim/objective company/firm/business present/current keep/retain",
)
SYNONYMS_ZH: Final = _groups(
    "怎么/如何/怎样/咋/怎么样/怎么才能/如何才能 什么/啥/哪些/哪个 为什么/为何/为啥 哪里/哪儿/哪/什么地方 多少/几",
    "可以/能/能够/可否/能否/可不可以/能不能 吗/么/嘛/呢",
    "解决/处理 修/修理/维修 使用/用/利用 购买/买 办理/办 取消/撤销 更改/修改/变更/改 删除/删掉/移除 查询/查/查看/查找",
    "方法/办法/方式 原因/理由 价格/价钱/多少钱 大概/大约",
    "帮助/帮忙 告诉/说 电影/影片 手机/电话 快递/包裹 申请/报名 时候/时间 地方/地点 区别/不同/差别 意思/含义",
    "作用/功能/用处 现在/目前/当前 工作/职业 图片/照片/图像 这个/该/此 是/为 您/你 我想/我要",
)
NUMBER_WORDS: Final[Mapping[str, str]] = dict(
    zip(
        _in_order(
            "zero two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen",
            "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion",
            "dozen half quarter twice double triple thrice second third fourth fifth sixth seventh eighth ninth tenth",
        ),
        _in_order(
            "0 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 30 40 50 60 70 80 90 100 1000 1000000 1000000000",
            "1000000000000 12 0.5 0.25 2x 2x 3x 3x 2. 3. 4. 5. 6. 7. 8. 9. 10.",
        ),
        strict=True,
    )
)
NUMERALS_ZH: Final = "〇零一二两三四五六七八九十百千万亿半"
MEASURES_ZH: Final = (
    "个只条天年月日号点块元岁次周小分秒公米斤件人层级版章代期倍折张本家口台部辆位名种楼路届门步成寸克吨升亩集季"
)
"""Characters before which a numeral counts as a number, as most 一 are not numbers."""


def opposite(word: str, other: str) -> bool:
    """Return whether two lower-case words are opposites: listed, or by a prefix as in install and uninstall."""
    if (word, other) in OPPOSITES or (word, other) in OPPOSITES_ZH:
        return True
    short, long = sorted((word, other), key=len)
    return len(short) >= 3 and any(long == prefix + short for prefix in PREFIXES)


def same_group(words: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether two runs of words are synonyms word by word, in any inflection."""
    return [stem(word) for word in words] == [stem(word) for word in others]


def stem(word: str) -> str:
    """Return a word's stem, which its inflections and listed synonyms share."""
    known = SYNONYMS.get(word) or SYNONYMS_ZH.get(word)
    if known:
        return known
    for ending in ("ies", "ing", "es", "ed", "'s", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            root = word[: -len(ending)] + ("y" if ending == "ies" else "")
            if len(root) > 3 and root[-1] == root[-2] and ending in ("ing", "ed"):
                root = root[:-1]
            return SYNONYMS.get(root, SYNONYMS.get(root + "e", root))
    return word
