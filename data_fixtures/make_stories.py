"""Writer of stories.jsonl: 226 tiny stories in sixteen languages, code and emoji, always the same.

Every sentence was written for this project. A story is one beginning, one middle and one end of
its language; the counter below walks through the combinations so that no two stories are equal.

    python data_fixtures/make_stories.py > data_fixtures/stories.jsonl
"""

# ruff: noqa: RUF001 -- other scripts than ours are the point

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

__all__ = ["records"]

# language: (beginnings, middles, ends)
PARTS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "en": (
        [
            "The lighthouse keeper owned forty-one clocks, and no two of them agreed.",
            "On market day the potter sold everything except the blue jug.",
            "Rain had been falling on the archive for a week when Ines found the map.",
            "My grandmother kept bees, opinions, and a ledger of both.",
            "The night train to Orrin stopped where there was no station.",
            "Every apprentice in the glassworks is told the same lie on the first day.",
            "A goat had learned to open the gate, and then it taught the others.",
        ],
        [
            "She wrote down the time anyway, in pencil, so that it could be corrected later.",
            "Nobody asked why, because asking would have meant staying to hear the answer.",
            "By noon there were three theories, and by evening there were two friendships fewer.",
            "He counted the coins twice: 12 large, 7 small, and one that was really a button.",
            "It smelled of tar and oranges: a ship had come from the south.",
            'The note said only: "Third shelf, behind the honey. Do not tell Marten."',
            "Someone had repaired it once with copper wire, patiently, and badly.",
        ],
        [
            "In the morning the ledger balanced, and that was the strangest thing of all.",
            "They still argue about it, but only when it rains.",
            "What was left they shared, and what could not be shared they planted.",
            "After that, the clocks were wrong together.",
            "She kept the button.",
            "You may visit it on Sundays, if the goat allows.",
            "And nobody, to this day, has found the second half of the map.",
        ],
    ),
    "de": (
        [
            "Der Fährmann sprach nur mit Leuten, die ein Buch bei sich trugen.",
            "Im Keller der Mühle stand ein Klavier, das keiner hinuntergetragen hatte.",
            "Frau Öztürk zählte jeden Abend die Laternen in der Gasse.",
        ],
        [
            "Es fehlte immer genau eine, und nie dieselbe.",
            "Das Größte daran war das Schweigen, das folgte.",
            "„Morgen“, sagte er, „wird es übermorgen.“",
        ],
        [
            "Seitdem fährt die Fähre auch bei Nebel.",
            "Den Schlüssel fand man erst Jahre später, im Brot.",
            "So blieb alles beim Alten, nur ein wenig heller.",
        ],
    ),
    "fr": (
        [
            "L’horloger réparait tout, sauf les montres.",
            "Au bout du quai, une chaise attendait déjà depuis l’hiver.",
            "Élodie avait caché la lettre sous le noyer, à deux pas du puits.",
        ],
        [
            "On lui apportait des parapluies, des promesses, des cœurs de cuivre.",
            "Le vent, ce jour-là, hésitait entre deux villages.",
            "« Trop tard », dit le chat, qui n’avait pourtant rien vu.",
        ],
        [
            "Personne ne réclama jamais la monnaie.",
            "Le noyer, lui, n’a rien oublié.",
            "Et la mer rendit la chaise, un peu plus bleue.",
        ],
    ),
    "es": (
        [
            "¿Quién dejó la ventana abierta la noche del cometa?",
            "El panadero de Almarza hornea un pan que nadie ha visto entero.",
            "La niña contaba los trenes que no pasaban.",
        ],
        [
            "Llegó a diecisiete antes de que empezara la niebla.",
            "Lo parte en la oscuridad, dice, para que no se enfríe el secreto.",
            "Solo el burro conocía el camino, y cobraba en zanahorias.",
        ],
        [
            "Desde entonces, el reloj de la plaza guarda silencio a las tres.",
            "¡Y aún queda la mitad!",
            "Mañana, quizá, pase el dieciocho.",
        ],
    ),
    "pt": (
        [
            "O farol da ilha acende-se sozinho quando alguém mente.",
            "A costureira guardava os botões por ordem de saudade.",
        ],
        [
            "Naquela noite, os pescadores voltaram sem precisar de estrelas.",
            "Faltava um, redondo, da cor do pão.",
        ],
        [
            "Ninguém perguntou quem tinha falado.",
            "Encontrou-o anos depois, no casaco de um estranho.",
        ],
    ),
    "tr": (
        [
            "Köyün tek saati, yağmur yağınca geriye doğru işlerdi.",
            "İhtiyar balıkçı ağlarını ışıkla örerdi.",
        ],
        [
            "Çocuklar o günlerde okula iki kez geç kalırdı.",
            "Ağlara takılan şey çoğu zaman balık değil, şarkıydı.",
        ],
        [
            "Güneş çıkınca herkes yeniden yaşlandı.",
            "Şarkıları denize geri bıraktı; biri hâlâ dönüyor.",
        ],
    ),
    "ru": (
        [
            "Почтальон приносил письма на день раньше, чем их писали.",
            "В конце улицы жил человек, который чинил тени.",
            "Бабушка солила огурцы и звёзды в одной бочке.",
        ],
        [
            "Соседи отвечали заранее, чтобы не задерживать события.",
            "За работу он брал недорого: одну хорошую шутку.",
            "«Ещё рано», — говорила она каждой осенью.",
        ],
        [
            "Последнее письмо пришло пустым, и все вздохнули с облегчением.",
            "С тех пор по вечерам улица стала длиннее.",
            "А весной в бочке нашли маленькую луну.",
        ],
    ),
    "el": (
        [
            "Ο βιβλιοδέτης έδενε μόνο βιβλία που δεν είχαν τελειώσει.",
            "Στο νησί υπήρχε ένα πηγάδι που απαντούσε.",
        ],
        [
            "Τις νύχτες άκουγε τις σελίδες να διαφωνούν.",
            "Μιλούσε όμως μόνο αν το ρωτούσες δεύτερη φορά.",
        ],
        [
            "Το πρωί όλα είχαν ένα ακόμη κεφάλαιο.",
            "Κανείς δεν θυμάται πια την ερώτηση.",
        ],
    ),
    "ar": (
        [
            "كان الحكيم يبيع الوقت في أكياس صغيرة من القماش.",
            "على سطح البيت زرعت ليلى شجرة لا ظل لها.",
        ],
        [
            "قال للولد: خذ ساعة واحدة، وأعد لي دقيقتين.",
            "كل مساء كانت العصافير تتفاوض على الأغصان.",
        ],
        [
            "وما زال الولد يبحث عن الدقيقة الثانية.",
            "وعندما جاء الشتاء، أثمرت الشجرة مصابيح.",
        ],
    ),
    "he": (
        [
            "הספרן השאיל ספרים רק למי שהבטיח לשכוח אותם.",
            "בקצה הרחוב גר איש שאסף הדים.",
        ],
        [
            "הילדה החזירה אחד, אבל זכרה את העמוד האחרון.",
            "את היפה שבהם שמר בצנצנת, ליד המלח.",
        ],
        [
            "מאז חסר בספרייה סוף אחד.",
            "בלילות שקטים אפשר לשמוע אותו עונה.",
        ],
    ),
    "hi": (
        [
            "गाँव का कुआँ हर सोमवार को कहानी सुनाता था।",
            "बूढ़े दर्ज़ी ने बादल से एक कुर्ता सिला।",
        ],
        [
            "बच्चे बाल्टियों में शब्द भरकर घर ले जाते थे।",
            "पहनने वाला जहाँ जाता, हल्की बारिश होती।",
        ],
        [
            "सबसे अच्छी कहानी आज भी तल में पड़ी है।",
            "किसानों ने उसे मेहमान बना लिया।",
        ],
    ),
    "zh": (
        [
            "山脚下的茶馆只在没有客人的时候开门。",
            "老木匠做了一把椅子，坐上去就会想起别人的童年。",
            "渡口的灯有三种颜色，却没有人记得第三种。",
        ],
        [
            "掌柜说：“急什么，水还没想好要不要开。”",
            "镇上的人排了一天的队，谁也没有说自己看见了什么。",
            "那天夜里起了雾，船自己回来了。",
        ],
        [
            "从此，茶比从前苦了一点，也香了一点。",
            "椅子后来送给了风。",
            "第二天，河改了名字。",
        ],
    ),
    "ja": (
        [
            "灯台守は四十一個の時計を持っていたが、どれも時刻が違った。",
            "雨の日だけ開く本屋が、坂の途中にある。",
            "猫のミケは、毎朝七時に郵便局へ出勤する。",
        ],
        [
            "店主は傘を本棚に、本を傘立てに入れている。",
            "切手の味にうるさいので、局長も困っている。",
            "「遅れているのは海のほうだ」と彼は言った。",
        ],
        [
            "それでも手紙は一通もなくならなかった。",
            "晴れた日には、だれもその店を思い出せない。",
            "翌朝、波がひとつ、きっかり三分遅れて届いた。",
        ],
    ),
    "ko": (
        [
            "할머니의 장독대에는 별이 하나 살고 있었다.",
            "기차는 언제나 한 정거장 먼저 도착했다.",
        ],
        [
            "된장이 익는 동안 별은 조용히 코를 골았다.",
            "승객들은 내리기 전에 먼저 그리워하는 법을 배웠다.",
        ],
        [
            "그해 된장은 유난히 반짝였다.",
            "마지막 역의 이름은 아직 아무도 모른다.",
        ],
    ),
    "th": (
        [
            "แมวของช่างทำว่าวรู้ทิศลมก่อนใคร",
            "ตลาดน้ำแห่งนั้นขายเสียงหัวเราะเป็นกำ",
        ],
        [
            "มันจะนั่งหันหลังให้พายุเสมอ",
            "แม่ค้าแถมให้หนึ่งเสียงถ้าซื้อก่อนฟ้าสาง",
        ],
        [
            "ว่าวตัวสุดท้ายยังไม่ยอมลง",
            "เด็กคนหนึ่งซื้อไปแล้วปล่อยคืนแม่น้ำ",
        ],
    ),
    "vi": (
        [
            "Ông lão sửa đồng hồ sống trên một chiếc thuyền không có mái chèo.",
            "Ở cuối làng có cây đa biết giữ bí mật.",
        ],
        [
            "Mỗi tối, ông vặn lại dòng sông cho đúng giờ.",
            "Trẻ con thì thầm vào rễ cây những điều người lớn đã quên.",
        ],
        [
            "Sáng ra, nước chảy chậm hơn một chút.",
            "Mùa xuân năm ấy, lá cây rơi xuống thành chữ.",
        ],
    ),
    "emoji": (
        [
            "Packing list for the moon 🌙: socks 🧦, tea 🍵, one (1) brave cat 🐈‍⬛.",
            "Weather report 🌦️: 40% rain, 60% 🌈, 100% frogs 🐸🐸🐸.",
        ],
        [
            "Crew: 👩‍🚀 captain, 👨🏽‍🔧 engineer, 👨‍👩‍👧‍👦 everybody's family on the radio 📻.",
            "Flags on the mast: 🇺🇳 🏴‍☠️ 🏳️‍🌈, and a tea towel.",
        ],
        [
            "We land at ½ past 3️⃣. 👍🏿",
            "Signed with a paw 🐾 and a naïve façade of calm… ☕️",
        ],
    ),
    "code": (
        [
            "def tide(hours: float) -> float:\n    \"\"\"Height in metres.\"\"\"\n",
            "fn main() {\n    let gates = [3u8, 1, 4];\n",
            "-- every jug that was not sold\nSELECT jug_id, glaze\n",
            "#!/bin/sh\nset -eu\n",
        ],
        [
            "\treturn 2.5 * hours % 12.42  # close enough\n",
            "    for (i, g) in gates.iter().enumerate() { println!(\"{i}: {g:>3}\"); }\n",
            "  FROM stall WHERE sold_on IS NULL AND price <= 12.50\n",
            "for clock in clocks/*.txt; do\n    wc -l < \"$clock\"\ndone\n",
        ],
        [
            "}\n",
            "ORDER BY glaze DESC; /* blue last */\n",
            "if __name__ == \"__main__\":\n    print(f\"{tide(6.0):.2f}\")\n",
            "exit 0\n",
        ],
    ),
}  # fmt: skip

COUNTS = {"en": 60, "code": 20, "emoji": 8, "de": 14, "fr": 14, "es": 14, "ru": 14, "zh": 14,
          "ja": 14}  # fmt: skip
OTHERS = 6  # stories of each language that is not named above


def records() -> Iterator[dict[str, str]]:
    """Return every story as {"id", "text", "lang"}."""
    for language, parts in PARTS.items():
        for number in range(COUNTS.get(language, OTHERS)):
            yield {
                "id": f"{language}-{number:03d}",
                "text": _story(parts, number, "" if language == "code" else " "),
                "lang": language,
            }


def _story(parts: tuple[list[str], list[str], list[str]], number: int, space: str) -> str:
    """Return combination `number`: neighbours differ in every part."""
    first, middle, last = parts
    lap = number // len(first)
    return space.join(
        (first[number % len(first)], middle[(number + lap) % len(middle)],
         last[(number + 2 * lap + lap // len(last)) % len(last)])
    )  # fmt: skip


if __name__ == "__main__":
    for record in records():
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
