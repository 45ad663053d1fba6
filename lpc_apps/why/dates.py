"""Dates, days and times as a pattern for `re.VERBOSE | re.IGNORECASE`: in digits, and in the words of common languages.

A day, a word in another script and a year count as a date, because no list has the months of every language. A number with
three parts is a date only if it can be one: ``2.1.153`` is a version.
"""

from typing import Final

_MONTHS: Final = """
    january february march april may june july august september october november december
    jan feb mar apr jun jul aug sep sept oct nov dec
    januar jänner februar märz mai juni juli oktober dezember mär okt dez
    janvier février mars avril juin juillet août septembre octobre novembre décembre janv févr avr juil déc
    enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre ene abr dic
    gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre
    janeiro fevereiro março maio junho julho setembro outubro novembro dezembro
    januari februari maart mei augustus mrt
    stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia
    января февраля марта апреля мая июня июля августа сентября октября ноября декабря
    januar februar marts maj augusti augusztus oktober desember januari
    tammikuuta helmikuuta maaliskuuta huhtikuuta toukokuuta kesäkuuta heinäkuuta elokuuta syyskuuta lokakuuta
    marraskuuta joulukuuta
    ledna února března dubna května června července srpna září října listopadu prosince
    január február március április május június július szeptember október
    maret agustus ianuarie februarie martie aprilie iunie iulie septembrie octombrie noiembrie decembrie
    ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık
"""
_DAYS: Final = """
    mon monday tue tues tuesday wed wednesday thu thur thurs thursday fri friday sat saturday sun sunday
    montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag lundi mercredi jeudi vendredi samedi dimanche
    lunes miércoles jueves viernes sábado lunedì martedì mercoledì giovedì venerdì sabato domenica
    segunda-feira terça-feira quarta-feira quinta-feira sexta-feira
    maandag dinsdag woensdag donderdag vrijdag zaterdag zondag
    poniedziałek wtorek środa czwartek piątek niedziela
    måndag tisdag onsdag torsdag fredag lördag söndag mandag tirsdag lørdag søndag
    maanantai tiistai keskiviikko torstai perjantai lauantai sunnuntai
    pondělí úterý středa čtvrtek pátek sobota neděle hétfő szerda csütörtök péntek szombat vasárnap
    pazartesi salı çarşamba perşembe cuma cumartesi pazar senin selasa rabu kamis jumat sabtu minggu
    понедельник вторник среда четверг пятница суббота воскресенье
"""


def _any_of(names: str) -> str:
    return "(?:" + "|".join(sorted(names.split(), key=len, reverse=True)) + ")"


_MONTH: Final = _any_of(_MONTHS) + r"(?![^\W\d_])\.?"
_DAY: Final = _any_of(_DAYS) + r"(?!\w)"
_DAY_OF: Final = r"(?:0[1-9]|[12]\d|3[01])"
_END: Final = r"(?![a-z0-9_])"
"""Not ``\\b``: in Chinese and Japanese a word follows without a blank."""
_CLOCK: Final = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[ap]\.?m\b\.?)?"
_ZONE: Final = r"(?:\s?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})(?![\w:]))?"
_AT: Final = rf"(?:,?\s(?:(?:at|à|às|a\slas|um|kl\.?|alle|om|o|г\.),?\s)?{_CLOCK}{_ZONE})?"
"""A time of day behind a date, with the word between them."""
_YEAR: Final = r"(?:19|20)\d{2}"
_OF: Final = r"\s(?:de[l]?\s|of\s)?"
_KANJI_DAY: Final = r"(?:星期|周|週|礼拜|禮拜)[一二三四五六日天]|[日月火水木金土]曜日?"
_KANJI_CLOCK: Final = (
    rf"(?:上午|下午|午前|午後|凌晨|早上|中午|晚上)?\s?(?:{_CLOCK}|\d{{1,2}}[点點时時](?:\d{{1,2}}分)?(?:\d{{1,2}}秒)?)"
)
_HANGUL_CLOCK: Final = rf"(?:오전|오후)?\s?(?:{_CLOCK}|\d{{1,2}}시(?:\s?\d{{1,2}}분)?(?:\s?\d{{1,2}}초)?)"
TIME: Final = rf"""
    (?!(?:[0-9a-f]{{2}}[:-]){{5}}[0-9a-f]{{2}}(?![\w:])) (?:
    \d{{1,2}}[-/]{_MONTH}[-/]\d{{4}}(?:[:\s]{_CLOCK}(?:\s?{_ZONE})?)?(?!\w)
  | {_YEAR}\.\s{_MONTH}\s\d{{1,2}}\.{_AT}
  | {_YEAR}\.\s\d{{1,2}}\.\s\d{{1,2}}(?!\w)\.?{_AT} | \d{{1,2}}\.\s\d{{1,2}}\.\s{_YEAR}(?!\w){_AT}
  | {_YEAR}(?:0[1-9]|1[0-2]){_DAY_OF}(?:[_-]\d{{4,6}}|(?:[01]\d|2[0-3])[0-5]\d[0-5]\d){_END} |
    {_YEAR}[-/.]\d{{1,2}}[-/.]\d{{1,2}}{_END}(?:,?\s{_CLOCK}{_ZONE})?
  | {_YEAR}[-/.]\d{{1,2}}[-/.]\d{{1,2}}T{_CLOCK}{_ZONE}
  | {_YEAR}-(?:0[1-9]|1[0-2]|W\d{{2}}(?:-\d)?)(?![\w-])
  | {_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:T\d{{4,6}}{_ZONE}|{_END})
  | (?:\d{{1,2}}(?P<sign>[-/])\d{{1,2}}(?P=sign)(?:{_YEAR}|\d{{2}})|
     \d{{1,2}}\.\d{{1,2}}\.{_YEAR}|(?:0[1-9]|[12]\d|3[01])\.(?:0[1-9]|1[0-2])\.\d{{2}})
    {_END}(?!\.\d)(?:,?\s{_CLOCK}{_ZONE})?
  | (?:{_DAY},?\s)?\d{{1,2}}(?:st|nd|rd|th|\.)?{_OF}{_MONTH},?(?:{_OF}\d{{4}})?(?!\w){_AT}
  | (?:{_DAY},?\s)?{_MONTH}\s{{1,2}}\d{{1,2}}(?:st|nd|rd|th)?(?!\w)
    (?:\s{_CLOCK}(?:\s[a-z]{{3,4}})?\s{_YEAR}(?!\w)|(?:,?\s\d{{4}})?{_AT})
  | {_MONTH}{_OF}{_YEAR}(?!\w)
  | \d{{1,2}}\s[^\x00-\x7f]{{2,15}}\s(?:\d{{4}})(?!\w)
  | ngày\s\d{{1,2}}\stháng\s\d{{1,2}}(?:\snăm\s\d{{4}})?
  | (?:\d{{1,4}}年)?\d{{1,2}}月\d{{1,2}}[日号號](?:\s?[（(]?(?:{_KANJI_DAY}|[日月火水木金土])[)）]?)?(?:\s?{_KANJI_CLOCK})?
  | \d{{4}}年(?:\d{{1,2}}月)?
  | (?:\d{{4}}년\s?)?\d{{1,2}}월\s?\d{{1,2}}일(?:\s?[(]?[월화수목금토일](?:요일)?[)]?)?(?:\s{_HANGUL_CLOCK})?
  | {_KANJI_DAY} | \d{{1,2}}[点點时時]\d{{1,2}}分(?:\d{{1,2}}秒)? | [월화수목금토일]요일
  | \d{{1,2}}시(?:\s?\d{{1,2}}분)
  | \b{_DAY}
  | {_CLOCK}{_ZONE}
  | \d{{1,2}}h\d{{2}}(?!\w) | \d{{1,2}}(?:\.\d{{2}})?\s?[ap]\.?m\b\.?
  | (?<!\.)1[4-9]\d{{8}}(?:\.\d{{1,9}}|\d{{3}}|\d{{6}}|\d{{9}})?{_END}
    )
"""
UNITS: Final = "年月日号號点點时時分秒년월일시분초（）"
"""Signs of dates that are shown in the form of a value."""
