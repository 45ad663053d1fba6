"""Questions whose answers change with time, and others that use the same words. Written before the word list, by hand."""

SENSITIVE = """
What is the latest version of Python?
What's the weather like today?
what is the weather in Paris right now
What's the current price of bitcoin?
How much does a share of Apple cost now?
Who is currently the CEO of Intel?
What time is it in Tokyo?
What's today's date?
what day is it
Is the store open now?
Which films are in the cinema this weekend?
What happened in the stock market yesterday?
Did the Lakers win last night?
What's the news this morning?
Will it rain tomorrow?
What is the exchange rate between dollar and euro?
What are the most recent changes to the tax rules?
Is your service down at the moment?
How many people live in Lagos as of now?
What events are there next week in Berlin?
Which team leads the league this season?
What's the newest iPhone?
Who won the match two days ago?
What is the interest rate at present?
Show me breaking news about the election.
What are the opening hours today?
What is the current time?
how long is the queue at the border crossing right now?
What is the stock price of Tesla?
Any delays on the U2 line currently?
Who is the current president of France?
What did parliament decide last week?
What's on TV tonight?
When is the next train to Lyon?
What was the temperature an hour ago?
Is it going to snow this week
NOW: is the shop open?
WHAT IS THE LATEST NEWS
What's trending these days?
How has inflation developed recently?
Is Windows 11 today's newest release?
最新的iPhone是哪一款？
今天天气怎么样
现在几点了
今天是几号？
明天会下雨吗？
现在的美元汇率是多少
当前油价是多少？
目前中国的首都人口有多少
昨晚的比赛谁赢了？
这周末有什么电影上映？
最近有什么新闻？
今年春节是哪一天？
下周一放假吗？
比特币现价多少
今日黄金价格
上个月的CPI是多少
本周有哪些优惠活动
特斯拉股价是多少？
三天前发生了什么大事
实时路况怎么样
今晚有什么球赛
你们现在营业吗
星期几了今天
此刻北京的气温
去年和今年的GDP相比如何
""".strip().splitlines()
"""The answer of an hour or a day ago may be wrong."""

LASTING = """
How do I know if my card works?
What does the SQL function NOW() return?
How do I call datetime.now() in Python?
How do I pull nginx:latest with docker?
Who wrote the song "Yesterday"?
Translate 'What time is it now?' into French.
What is the difference between a current account and a savings account?
How is electric current measured?
How do I print the current directory in bash?
Now write a poem about the sea.
Now, explain recursion.
What is snow made of?
How do I change the password now that I have a new phone?
What is ServiceNow used for?
Who directed Apocalypse Now?
Where is the newspaper USA Today printed?
What is the past tense of go?
What does `git checkout latest` do?
How do I compute the date of the next day in Java?
How do I cancel my subscription?
When was the Eiffel Tower built?
What is the capital of Australia?
Explain the time value of money.
How do I open the file latest.tar.gz?
How often should I update my software?
How do I set up a daily backup?
Which year did World War II end?
What is a real-time operating system?
Who was the first person on the moon?
How many days are in a week?
From now on, answer in French. What is a cache?
How long does a transfer take?
What is the weekly limit of withdrawals?
Why is the sky blue today and not green? is the title of a book by whom?
What does "as of now" mean?
What are the week's seven days called in German?
Please summarise the plot of The Day After Tomorrow.
How do I get the current user in Django?
How does an alternating current motor work?
What is the time complexity of merge sort?
What does date of issue mean on a passport?
什么是现在完成时？
现在分词怎么用
最近公共祖先怎么求
离我最近的地铁站怎么表示为图的问题
“今天”用英语怎么说？
今日头条是哪家公司的产品
怎么打印当前目录
什么是实时操作系统
如何注销账号
怎么修改密码
一年有多少天
春节的由来是什么
后天性免疫缺陷综合症是什么
什么是活期存款
明天系是什么公司
怎么查看当前用户
转账需要多长时间
《昨天》这首歌的作者是谁？
""".strip().splitlines()
"""The answer stays right for days."""
